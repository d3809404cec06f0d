/** A job at a glance: the timeline of its stages and attempts, its curves, its result, its checkpoints. */

import { duration, number } from "../core/format.js";
import { link } from "../core/router.js";
import { html } from "../core/ui.js";
import { Facts } from "../parts/common.js";
import { Evaluation } from "../parts/evaluation.js";
import { Checkpoints } from "./job_checkpoints.js";
import { Curves } from "./job_curves.js";
import { Timeline } from "./job_timeline.js";

export function Overview({ job, ended }) {
  const { spec } = job;
  const evaluation = job.stages.find(({ name }) => name === "evaluate")?.summary;
  return html`<div class="columns">
    <section class="card" aria-labelledby="timeline"><h2 id="timeline">Timeline</h2><${Timeline} job=${job} /></section>
    ${evaluation?.suites &&
    html`<section class="card" aria-labelledby="result">
      <h2 id="result">Acceptance</h2>
      ${job.draft && html`<p>Published as <a href=${link(["drafts", job.draft])}>${job.draft}</a></p>`}
      <${Evaluation} report=${evaluation} />
    </section>`}
    <${Curves} job=${job} ended=${ended} />
    <${Checkpoints} job=${job} ended=${ended} />
    <section class="card" aria-labelledby="facts">
      <h2 id="facts">Job</h2>
      <${Facts}
        entries=${[
          ["Verifier", spec.verifier.model],
          ["Reached at", spec.verifier.managed ? "started by the worker" : (spec.verifier.endpoint ?? "the fleet's own")],
          ["Dataset", spec.data.dataset],
          ["Waited", duration(job.durations.queued_s)],
          ["Epochs", spec.train.epochs],
          ["Learning rate", number(spec.train.lr)],
          ["TTT steps", spec.train.ttt_steps],
          ["GPUs for training", spec.train.gpus],
          ...Object.entries(job.metadata).map(([key, value]) => [html`<code>${key}</code>`, value]),
        ]}
      />
    </section>
  </div>`;
}
