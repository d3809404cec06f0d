/** When each stage ran, as bars over the job's own time, and what ended its attempts. */

import { duration, moment } from "../core/format.js";
import { useNow } from "../core/live.js";
import { classes, html } from "../core/ui.js";
import { Status } from "../parts/common.js";
import { counted, shownStatus, stageFraction } from "../parts/stages.js";

const LEAST_WIDTH = 0.6; // percent: a stage of milliseconds is still seen

export function Timeline({ job }) {
  const now = useNow(1000);
  const start = new Date(job.created_at).getTime();
  const end = job.finished_at ? new Date(job.finished_at).getTime() : Math.max(now, start + 1000);
  const place = (from, to) => {
    const left = Math.min(Math.max((from - start) / (end - start), 0), 1) * 100;
    const width = Math.max(Math.min(((to - from) / (end - start)) * 100, 100 - left), LEAST_WIDTH);
    return { left: `${Math.min(left, 100 - LEAST_WIDTH)}%`, width: `${width}%` };
  };
  return html`<ol class="timeline">
      ${job.stages.map((stage) => html`<${StageLine} key=${stage.name} stage=${stage} job=${job} place=${place} now=${now} />`)}
    </ol>
    <p class="sub timeline-ends"><span>${moment(job.created_at)}</span><span>${job.finished_at ? moment(job.finished_at) : "now"}</span></p>
    <${Attempts} job=${job} />`;
}

function StageLine({ stage, job, place, now }) {
  const from = stage.started_at && new Date(stage.started_at).getTime();
  const to = stage.finished_at ? new Date(stage.finished_at).getTime() : now;
  const status = shownStatus(stage, job);
  const progress = stage.status === "running" ? stage.progress : null;
  const text = [
    progress && counted(progress),
    progress?.activity,
    progress?.resumed_from ? `from ${progress.resumed_from} on` : null,
    stage.attempt > 1 && `run ${stage.attempt}`,
  ].filter(Boolean);
  return html`<li class="timeline-stage" data-stage=${stage.name} data-status=${stage.status}>
    <span class="timeline-name">${stage.name}</span>
    <${Status} value=${status} />
    <span class="timeline-track" aria-hidden="true">
      ${from && html`<span class=${classes("timeline-bar", `is-${status}`)} style=${place(from, to)}></span>`}
    </span>
    <span class="timeline-time">${took(stage, from, now)}</span>
    ${text.length > 0 && html`<span class="timeline-text sub">${text.join(" · ")}</span>`}
    ${progress &&
    html`<progress max="1" value=${stageFraction(stage)} aria-label=${`Progress of ${stage.name}`}></progress>`}
  </li>`;
}

function took(stage, from, now) {
  if (stage.status === "reused") return "reused";
  if (stage.seconds !== null) return duration(stage.seconds);
  return stage.status === "running" && from ? duration(Math.max(0, Math.round((now - from) / 1000))) : "";
}

function Attempts({ job }) {
  const told = job.attempts.filter(({ reason }) => reason);
  if (job.attempts.length < 2 && told.length === 0) return null;
  return html`<h3>Attempts</h3>
    <ul class="attempts">
      ${job.attempts.map(
        (attempt) => html`<li key=${attempt.number}>
          <strong>${attempt.number}</strong>
          <span>
            ${moment(attempt.started_at)} on <code>${attempt.worker}</code>: ${ending(attempt)}
            ${attempt.message && html`<span class="sub">${attempt.message}</span>`}
          </span>
        </li>`,
      )}
    </ul>`;
}

function ending(attempt) {
  if (attempt.reason) return `${attempt.reason.replaceAll("_", " ")}${attempt.stage ? ` in ${attempt.stage}` : ""}`;
  return attempt.ended_at ? "ended" : "runs";
}
