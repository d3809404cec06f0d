/** A job's stages as one bar, and what its progress amounts to in words. */

import { duration, number } from "../core/format.js";
import { classes, html } from "../core/ui.js";

const DONE = ["succeeded", "reused"];
// The same shares of a whole job as in the API's percentage.
const SHARE = { prepare: 2, generate: 30, capture: 10, vocab: 1, train: 45, evaluate: 11, publish: 1 };
const LEAST_SHARE = 4; // short stages stay visible

/** Which part of a stage is done, from 0 to 1. */
export function stageFraction(stage) {
  if (DONE.includes(stage.status)) return 1;
  const progress = stage.progress;
  if (!progress || progress.total <= 0) return 0;
  return Math.max(progress.fraction, Math.min(progress.done / progress.total, 1));
}

/** A bar of the stages, as wide as they are long. */
export function StageBar({ job }) {
  const label = job.stages.map((stage) => `${stage.name} ${inWords(stage)}`).join(", ");
  return html`<div class="stage-bar" role="img" aria-label=${label}>
    ${job.stages.map((stage) => {
      const shown = shownStatus(stage, job);
      return html`<span
        class=${classes("stage-part", `is-${shown}`)}
        title=${`${stage.name}: ${inWords(stage)}`}
        style=${width(stage)}
        ><span class="stage-fill" style=${{ width: `${stageFraction(stage) * 100}%` }}></span
      ></span>`;
    })}
  </div>`;
}

/** The names below the parts of the bar; colours are said in words elsewhere. */
export function StageLegend({ job }) {
  return html`<div class="stage-legend" aria-hidden="true">
    ${job.stages.map((stage) => html`<span style=${width(stage)}>${stage.name}</span>`)}
  </div>`;
}

const width = (stage) => ({ flexGrow: String(Math.max(SHARE[stage.name] ?? 1, LEAST_SHARE)) });

/** A stage's state for colours: what stands still is not shown as if it ran. */
export function shownStatus(stage, job) {
  if (stage.status === "running" && job.status === "paused") return "paused";
  return stage.status;
}

/** Rate and time left of a job that runs, as far as they are known. */
export function rateAndEta(job) {
  const progress = currentProgress(job);
  if (!progress) return { rate: null, eta: null };
  const parts = [];
  if (progress.tokens_per_s) parts.push(`${number(progress.tokens_per_s)} tokens/s`);
  if (progress.rate) parts.push(`${number(progress.rate)} ${progress.unit}/s`);
  return { rate: parts.join(" · ") || null, eta: progress.eta_s === null ? null : duration(progress.eta_s) };
}

/** What is counted: "120 of 480 steps". */
export function counted(progress) {
  if (!progress || !progress.total) return null;
  return `${number(progress.done)} of ${number(progress.total)} ${progress.unit}`;
}

function currentProgress(job) {
  if (job.status !== "running") return null;
  const stage = job.stages.find(({ status }) => status === "running");
  if (!stage?.progress) return null;
  const { progress } = stage;
  return {
    unit: job.progress.unit ?? progress.unit,
    rate: progress.rate,
    tokens_per_s: job.progress.tokens_per_s ?? progress.metrics?.tokens_per_s ?? null,
    eta_s: job.progress.eta_s ?? progress.eta_s ?? null,
  };
}

function inWords(stage) {
  if (stage.status !== "running") return stage.status;
  return `running, ${Math.round(stageFraction(stage) * 100)} %`;
}
