/** Calls of the gateway's API: JSON in and out, errors as `ApiError`, and to the login where a key is asked for. */

/** An answer that is no success. `status` is 0 where there was no answer at all. */
export class ApiError extends Error {
  constructor(status, problem, headers = new Headers()) {
    super(problem.detail || problem.title || `The gateway answered ${status}.`);
    this.status = status;
    this.title = problem.title || "The request failed";
    this.errors = problem.errors || [];
    this.docs = problem.docs || null;
    this.headers = headers;
  }

  /** Whether the gateway, or what it needs, is away for now. */
  get isOutage() {
    return this.status === 0 || this.status >= 500;
  }
}

/** A path with every inserted part escaped: path`/v1/jobs/${id}`. */
export function path(strings, ...parts) {
  return strings.reduce((made, text, i) => made + encodeURIComponent(parts[i - 1]) + text);
}

/** A query string of what is set; a list repeats its name. */
export function query(values) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const one of [value].flat()) if (one !== undefined && one !== null && one !== "") search.append(name, one);
  }
  const text = search.toString();
  return text ? `?${text}` : "";
}

/**
 * Call the API.
 *
 * @param {string} url below this origin
 * @param {{method?: string, json?: unknown, headers?: Record<string, string>}} options
 * @returns what the answer's JSON holds, or its text
 * @throws {ApiError}
 */
export async function api(url, { method = "GET", json, headers = {} } = {}) {
  const request = { method, headers: { Accept: "application/json", "X-Eyrie-Page": "1", ...headers } };
  if (json !== undefined) {
    request.body = JSON.stringify(json);
    request.headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(url, request);
  } catch {
    throw new ApiError(0, { title: "No answer", detail: "The gateway does not answer." });
  }
  return read(response);
}

/** Send a file as the body of a POST; `onProgress` gets the part that is sent, from 0 to 1. */
export function upload(url, file, type, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", url);
    request.setRequestHeader("Content-Type", type);
    request.setRequestHeader("X-Eyrie-Page", "1");
    request.upload.onprogress = (event) => event.lengthComputable && onProgress(event.loaded / event.total);
    request.onerror = () => reject(new ApiError(0, { detail: "The upload broke off: the gateway does not answer." }));
    request.onload = () => {
      const body = parse(request.responseText);
      if (request.status < 400) return resolve(body);
      if (request.status === 401) toLogin();
      return reject(new ApiError(request.status, body ?? {}));
    };
    request.send(file);
  });
}

async function read(response) {
  const text = await response.text();
  const isJson = (response.headers.get("content-type") || "").includes("json");
  if (response.ok) return isJson ? JSON.parse(text) : text;
  if (response.status === 401) toLogin();
  throw new ApiError(response.status, (isJson && parse(text)) || {}, response.headers);
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function toLogin() {
  location.assign(`/login${query({ next: `/${location.hash}` })}`);
}
