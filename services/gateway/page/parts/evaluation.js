/** How many of a draft's tokens the verifier accepts: length by suite, share by position, before and after training. */

import { number, percent, tokens } from "../core/format.js";
import { html } from "../core/ui.js";
import { Status } from "./common.js";

const GATES = { passed: "succeeded", failed: "failed", none: "pending" };
const NAMES = { untrained: "before", trained: "after", compare: "compared" };

/** Whether a draft has reached what was asked of it. */
export function Gate({ value }) {
  return html`<${Status} value=${GATES[value] ?? "pending"} label=${value === "none" ? "no gate" : `gate ${value}`} />`;
}

/** An evaluation report. */
export function Evaluation({ report }) {
  if (!report?.suites) return null;
  const longest = report.num_speculative_tokens + 1;
  return html`<div class="evaluation">
    ${Object.entries(report.suites).map(
      ([suite, measured]) => html`<div class="suite" key=${suite}>
        <h3>${suite}</h3>
        ${Object.keys(NAMES)
          .filter((name) => measured[name])
          .map((name) => html`<${Measured} name=${NAMES[name]} value=${measured[name]} longest=${longest} />`)}
        ${gain(measured) && html`<p class="gain"><strong>×${number(gain(measured))}</strong> over the untrained draft</p>`}
      </div>`,
    )}
    ${report.gate?.failures?.length > 0 &&
    html`<ul class="notice is-warning">${report.gate.failures.map((failure) => html`<li>${failure}</li>`)}</ul>`}
    <p class="sub">
      ${report.num_speculative_tokens} speculative tokens; acceptance length lies between 1 and ${longest},
      measured${" "}${report.mode === "vllm" ? "in vLLM" : "offline, on held-out states"}.
    </p>
  </div>`;
}

/** One draft's figures: its acceptance length as a bar, and its positions. */
export function Measured({ name, value, longest, before }) {
  const length = value.acceptance_length;
  const part = (size) => `${Math.min(Math.max((size - 1) / (longest - 1), 0), 1) * 100}%`;
  return html`<div class="measured">
    <span class="measured-name">${name}</span>
    <span class="measured-bar" aria-hidden="true">
      <span class="measured-fill" style=${{ width: length ? part(length) : "0" }}></span>
      ${before && html`<span class="measured-before" style=${{ left: part(before) }} title=${`before training: ${tokens(before)}`}></span>`}
    </span>
    <span class="measured-length"><strong>${tokens(length)}</strong>${value.mode === "offline" ? " (offline)" : ""}</span>
    <span class="measured-positions"><${Positions} shares=${value.per_position} /></span>
  </div>`;
}

/** Shares by position: the darker, the more. */
export function Positions({ shares }) {
  return html`<span class="positions">
    ${shares.map(
      (share, i) => html`<span class="position" title=${`position ${i + 1}`}>
        <span class="sub">${i + 1}</span>
        <span class="position-bar" aria-hidden="true"><span style=${{ width: `${(share ?? 0) * 100}%` }}></span></span>
        ${percent(share, 0)}
      </span>`,
    )}
  </span>`;
}

/** Trained over untrained acceptance length; null where either is not known. */
export function gain(measured) {
  const [after, before] = [measured.trained?.acceptance_length, measured.untrained?.acceptance_length];
  return after && before ? after / before : null;
}
