/** What a job would need, and everything that stands against it. */

import { bytes, compact, duration, number } from "../core/format.js";
import { html } from "../core/ui.js";
import { Facts } from "../parts/common.js";

export function PlanCard({ plan, outdated }) {
  if (!plan) return outdated ? html`<section class="card sub">The plan was for an earlier version of the document.</section>` : null;
  return html`<section class="card" aria-labelledby="plan">
    <h2 id="plan">Plan</h2>
    ${plan.ok
      ? html`<p class="notice is-good" role="status">The job can be submitted.</p>`
      : html`<div class="notice is-bad" role="alert">
          <strong>${plan.problems.length === 1 ? "One problem" : `${plan.problems.length} problems`}</strong>
          <ul>
            ${plan.problems.map(({ pointer, message }) => html`<li>${pointer && html`<code>${pointer}</code> `}${message}</li>`)}
          </ul>
        </div>`}
    ${plan.notes.map((note) => html`<p class="sub">${note}</p>`)}
    <${Facts} entries=${facts(plan)} />
    ${plan.stages.length > 0 && html`<${Stages} plan=${plan} />`}
    ${plan.tokens?.assumptions.map((assumption) => html`<p class="sub">Assumed: ${assumption}</p>`)}
  </section>`;
}

function facts(plan) {
  return [
    ["Rows", plan.tokens && number(plan.tokens.rows)],
    ["Tokens", plan.tokens && html`${compact(plan.tokens.tokens.likely)} <span class="sub">${range(plan.tokens.tokens, compact)}</span>`],
    ["Steps", plan.steps !== null ? number(plan.steps) : null],
    ["Disk", plan.disk_bytes && html`${bytes(plan.disk_bytes.likely)} <span class="sub">${range(plan.disk_bytes, bytes)}</span>`],
    ["Store has left", bytes(Math.max(0, left(plan.store)))],
    ["Draft", plan.draft_parameters && `${compact(plan.draft_parameters_total)} parameters, ${compact(plan.draft_parameters.trained)} of them trained`],
    ["GPU memory for training", plan.gpu_memory_bytes && html`${bytes(plan.gpu_memory_bytes.likely)} <span class="sub">${range(plan.gpu_memory_bytes, bytes)}</span>`],
    [
      "vLLM starts",
      plan.loading_seconds === null ? plan.verifier_starts : `${plan.verifier_starts}, ${duration(plan.loading_seconds)} of loading`,
    ],
    ["Time", plan.seconds === null ? "not known yet" : duration(plan.seconds)],
  ];
}

function range({ least, most }, show) {
  return least === most ? "" : `(${show(least)} to ${show(most)})`;
}

function left(store) {
  const byVolume = store.free_bytes - store.floor_bytes;
  return store.quota_bytes === null ? byVolume : Math.min(byVolume, store.quota_bytes - (store.used_bytes ?? 0));
}

function Stages({ plan }) {
  return html`<div class="table-wrap" tabindex="0" role="region" aria-label="Cost by stage">
    <table>
      <thead><tr><th>Stage</th><th class="num">Disk</th><th class="num">Time</th><th>New</th></tr></thead>
      <tbody>
        ${plan.stages.map(
          (stage) => html`<tr key=${stage.name}>
            <td>${stage.name}</td>
            <td class="num">${stage.reused ? "–" : bytes(stage.disk_bytes.likely)}</td>
            <td class="num">${stage.reused ? "–" : duration(stage.seconds)}</td>
            <td>${stage.reused ? "reused: an equal stage has finished" : "computed"}</td>
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}
