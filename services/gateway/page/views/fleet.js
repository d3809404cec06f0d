/** The fleet: who has which GPU, what the workers do, and which verifiers are served. */

import { api, query } from "../core/api.js";
import { bytes } from "../core/format.js";
import { useChanges, useReading } from "../core/live.js";
import { link } from "../core/router.js";
import { html } from "../core/ui.js";
import { Ago, Empty, Facts, Heading, Loading, Problem, Status } from "../parts/common.js";

const ALL = query({ limit: 200 });
const GPU_COLORS = { free: "succeeded", leased: "running", quarantined: "failed" };
const VERIFIER_COLORS = { ready: "succeeded", loading: "running", unreachable: "failed" };

export function FleetView() {
  const gpus = useReading(() => api(`/v1/gpus${ALL}`), []);
  const workers = useReading(() => api(`/v1/workers${ALL}`), []);
  const verifiers = useReading(() => api(`/v1/verifiers${ALL}`), []);
  const nudge = () => [gpus, workers, verifiers].forEach((reading) => reading.nudge());
  useChanges(nudge);
  return html`<${Heading} title="Workers & GPUs" />
    <${Part} title="GPUs" reading=${gpus} empty="No worker has reported a GPU.">${(list) => html`<${Gpus} gpus=${list} />`}<//>
    <${Part} title="Workers" reading=${workers} empty="No worker is running.">${(list) => html`<${Workers} workers=${list} />`}<//>
    <${Part} title="Verifiers" reading=${verifiers} empty="No verifier is served.">
      ${(list) => html`<${Verifiers} verifiers=${list} />`}
    <//>`;
}

function Part({ title, reading, empty, children }) {
  const { data, error } = reading;
  const id = title.toLowerCase();
  return html`<section class="part" aria-labelledby=${id}>
    <h2 id=${id}>${title}${data && html` <span class="count">${data.data.length}</span>`}</h2>
    ${!data && (error && !error.isOutage ? html`<${Problem} error=${error} />` : html`<${Loading} />`)}
    ${data && (data.data.length === 0 ? html`<${Empty} title=${empty} />` : children(data.data))}
  </section>`;
}

function Gpus({ gpus }) {
  return html`<ul class="cards">
    ${gpus.map(
      (gpu) => html`<li class=${`card gpu is-${gpu.status}`} key=${gpu.id} data-gpu=${gpu.id}>
        <div class="card-head"><strong class="break">${gpu.id}</strong><${Status} value=${GPU_COLORS[gpu.status]} label=${gpu.status} /></div>
        <span class="sub">${gpu.name}${gpu.memory_bytes ? ` · ${bytes(gpu.memory_bytes)}` : ""}</span>
        ${gpu.holder &&
        html`<p>
          ${gpu.status === "quarantined" ? "last held by" : "held by"}
          ${" "}<a href=${link(["jobs", gpu.holder.job_id])}>${gpu.holder.job_id}</a> for ${gpu.holder.stage}
          <span class="sub">on ${gpu.holder.host}, since <${Ago} at=${gpu.holder.since} /></span>
        </p>`}
        ${gpu.status === "quarantined" &&
        html`<p class="sub">Its run is gone without giving it back. A worker on that host frees it as soon as it has found it empty.</p>`}
      </li>`,
    )}
  </ul>`;
}

function Workers({ workers }) {
  return html`<ul class="cards">
    ${workers.map(
      (worker) => html`<li class="card" key=${worker.id} data-worker=${worker.id}>
        <div class="card-head">
          <strong class="break">${worker.host}</strong>
          <${Status} value=${worker.job_id ? "running" : "succeeded"} label=${worker.job_id ? "works" : "idle"} />
        </div>
        ${worker.job_id &&
        html`<p><a href=${link(["jobs", worker.job_id])}>${worker.job_id}</a>${worker.stage ? ` in ${worker.stage}` : ""}</p>`}
        <${Facts}
          entries=${[
            ["Id", html`<code title=${worker.id}>${worker.id.length > 16 ? `${worker.id.slice(0, 12)}…` : worker.id}</code>`],
            ["Process", worker.pid],
            ["Version", worker.version],
            ["GPUs", worker.gpus.map((gpu) => gpu.id ?? gpu).join(", ") || "none"],
            ["Started", html`<${Ago} at=${worker.started_at} />`],
            ["Last seen", html`<${Ago} at=${worker.seen_at} />`],
          ]}
        />
      </li>`,
    )}
  </ul>`;
}

function Verifiers({ verifiers }) {
  return html`<ul class="cards">
    ${verifiers.map(
      (one) => html`<li class="card" key=${one.id} data-verifier=${one.id}>
        <div class="card-head"><strong class="break">${one.model || "The fleet's own verifier"}</strong><${Status} value=${VERIFIER_COLORS[one.status]} label=${one.status} /></div>
        <span class="sub">${one.kind}${one.url ? ` · ${one.url}` : ""}</span>
        ${one.status_message && html`<p>${one.status_message}</p>`}
        <${Facts}
          entries=${[
            ["Job", one.job_id && html`<a href=${link(["jobs", one.job_id])}>${one.job_id}</a>`],
            ["Layers", one.num_layers],
            ["Hidden size", one.hidden_size],
            ["Vocabulary", one.vocab_size],
            ["Context", one.max_model_len && `${one.max_model_len} tokens`],
            ["Captures", captures(one.capture)],
            ["GPUs", (one.gpus ?? []).join(", ")],
            ["Asked", html`<${Ago} at=${one.checked_at} />`],
          ]}
        />
      </li>`,
    )}
  </ul>`;
}

function captures(capture) {
  if (!capture) return null;
  if (!capture.enabled) return "off";
  return `layers ${(capture.layer_ids ?? []).join(", ")}${capture.modes?.length ? `, ${capture.modes.join(" or ")}` : ""}`;
}
