/** Upload a dataset: prompts, conversations or token ids, as JSONL or Parquet; or a folder as a tar archive. */

import { query, upload } from "../core/api.js";
import { bytes, number } from "../core/format.js";
import { html, useId, useState } from "../core/ui.js";
import { Problem } from "../parts/common.js";

const HASHED_BYTES = 256 * 1024 * 1024; // larger files would have to be held in memory to be hashed

export function Upload({ onDone }) {
  const id = useId();
  const [share, setShare] = useState(null);
  const [done, setDone] = useState(null);
  const [error, setError] = useState(null);
  const send = async (event) => {
    const input = event.target;
    const [file] = input.files;
    if (!file) return;
    setError(null);
    setDone(null);
    setShare(0);
    try {
      const values = { name: asName(file.name), sha256: await sha256(file) };
      const dataset = await upload(`/v1/datasets${query(values)}`, file, typeOf(file.name), setShare);
      setDone(dataset);
      await onDone(dataset);
    } catch (failure) {
      setError(failure);
    } finally {
      setShare(null);
      input.value = "";
    }
  };
  return html`<div class="field">
    <label for=${id}>or upload one <span class="sub">JSONL, Parquet, or a folder as .tar</span></label>
    <input id=${id} type="file" accept=".jsonl,.ndjson,.gz,.parquet,.tar,.json,.txt" disabled=${share !== null} onChange=${send} />
    <div role="status">
      ${share !== null && html`<progress value=${share} max="1" aria-label="Upload"></progress>`}
      ${done && html`<p class="sub">Uploaded ${done.name}: ${number(done.rows)} rows, ${bytes(done.bytes)}.</p>`}
    </div>
    <${Problem} error=${error} />
  </div>`;
}

/** The file's hash, so that the gateway can tell whether all of it arrived; undefined where it cannot be made. */
async function sha256(file) {
  if (!crypto.subtle || file.size > HASHED_BYTES) return undefined;
  const digest = await crypto.subtle.digest("SHA-256", await file.arrayBuffer());
  return [...new Uint8Array(digest)].map((one) => one.toString(16).padStart(2, "0")).join("");
}

/** A file's name as a dataset's name. */
function asName(name) {
  const clean = name.replace(/[^\w .:@+/-]/g, "-").replace(/^[^\w]+/, "").slice(0, 128);
  return clean || "dataset";
}

function typeOf(name) {
  if (/\.tar(\.gz)?$|\.tgz$/.test(name)) return "application/x-tar";
  return name.endsWith(".parquet") ? "application/vnd.apache.parquet" : "application/x-ndjson";
}
