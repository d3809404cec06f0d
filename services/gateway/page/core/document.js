/** A partial job document: values by JSON pointer. */

/** The value at a pointer such as /train/lr; undefined where there is none. */
export function valueAt(document, pointer) {
  return pointer
    .split("/")
    .slice(1)
    .reduce((value, key) => (value === null || value === undefined ? undefined : value[key]), document);
}

/** A copy with another value at a pointer; undefined takes it away, and objects that are empty then with it. */
export function withValue(document, pointer, value) {
  const [key, ...rest] = pointer.split("/").slice(1);
  const copy = { ...document };
  const inner = rest.length ? withValue(asObject(copy[key]), `/${rest.join("/")}`, value) : value;
  if (inner === undefined || (rest.length && Object.keys(inner).length === 0)) delete copy[key];
  else copy[key] = inner;
  return copy;
}

/** The object that a text holds. @throws {Error} in words, with the place */
export function parseDocument(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}`, { cause: error });
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    throw new Error("A job document is a JSON object: { … }");
  }
  return value;
}

export const asText = (document) => JSON.stringify(document, null, 2);

const asObject = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : {});
