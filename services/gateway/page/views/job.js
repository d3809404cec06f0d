/** One job: what it is doing, what can be done with it, and its parts, each at its own address. */

import { api, path } from "../core/api.js";
import { duration } from "../core/format.js";
import { useChanges, useReading } from "../core/live.js";
import { go, link } from "../core/router.js";
import { html, useState } from "../core/ui.js";
import { Ago, Copy, Heading, Loading, Problem, Status } from "../parts/common.js";
import { JobActions } from "../parts/job_actions.js";
import { StageBar, StageLegend } from "../parts/stages.js";
import { Artifacts } from "./job_artifacts.js";
import { JobDocument } from "./job_document.js";
import { Events } from "./job_events.js";
import { Logs } from "./job_logs.js";
import { Overview } from "./job_overview.js";
import { standing } from "./jobs.js";
import { Lineage } from "./lineage.js";

const ENDED = ["succeeded", "failed", "cancelled"];
const TABS = [
  ["overview", "Overview"],
  ["logs", "Logs"],
  ["events", "Events"],
  ["artifacts", "Artifacts"],
  ["document", "Document"],
  ["lineage", "Lineage"],
];

export function JobView({ id, tab = "overview", params }) {
  const [deletion, setDeletion] = useState({ running: false, failure: null });
  const reading = useReading(deletion.running ? null : () => api(path`/v1/jobs/${id}`), [id, deletion.running]);
  const job = reading.data;
  const ended = job !== null && ENDED.includes(job.status);
  useChanges(reading.nudge, { concerns: (changed) => changed === id, off: ended || deletion.running });

  const remove = async () => {
    setDeletion({ running: true, failure: null }); // nothing asks for a job that is going
    try {
      await api(path`/v1/jobs/${id}`, { method: "DELETE" });
      go(link(["jobs"]));
    } catch (failure) {
      setDeletion({ running: false, failure });
    }
  };

  if (deletion.running) return html`<${Loading} />`;
  if (reading.error && !job) {
    if (reading.error.isOutage) return html`<${Heading} title="Job" /><${Loading} />`;
    return html`<${Heading} title="Job" /><${Problem} error=${reading.error}><a href=${link(["jobs"])}>All jobs</a><//>`;
  }
  if (!job) return html`<${Loading} />`;
  return html`<${Heading} title=${job.name || job.id} below=${html`<${Below} job=${job} />`}>
      <${JobActions} job=${job} onDone=${reading.reload} onDelete=${remove} failure=${deletion.failure} />
    <//>
    <${Standing} job=${job} ended=${ended} />
    <nav class="tabs" aria-label="Parts of the job">
      ${TABS.map(
        ([name, title]) => html`<a
          href=${name === "overview" ? link(["jobs", id]) : link(["jobs", id, name])}
          aria-current=${tab === name ? "page" : undefined}
          >${title}</a
        >`,
      )}
    </nav>
    <${Tab} tab=${tab} job=${job} ended=${ended} params=${params} nudge=${reading.nudge} />`;
}

function Tab({ tab, job, ended, params, nudge }) {
  if (tab === "logs") return html`<${Logs} job=${job} params=${params} />`;
  if (tab === "events") return html`<${Events} job=${job} ended=${ended} />`;
  if (tab === "artifacts") return html`<${Artifacts} job=${job} />`;
  if (tab === "document") return html`<${JobDocument} job=${job} />`;
  if (tab === "lineage") return html`<${Lineage} draft=${job.draft} />`;
  return html`<${Overview} job=${job} ended=${ended} nudge=${nudge} />`;
}

function Below({ job }) {
  return html`<div class="below">
    <${Status} value=${job.status} /><${Copy} text=${job.id} />
    <span>${job.preset}</span>
    <span>submitted <${Ago} at=${job.created_at} /></span>
    ${job.retry_of && html`<span>again of <a href=${link(["jobs", job.retry_of])}>${job.retry_of}</a></span>`}
    ${job.retried_as && html`<span>done again as <a href=${link(["jobs", job.retried_as])}>${job.retried_as}</a></span>`}
  </div>`;
}

function Standing({ job, ended }) {
  const spent = job.durations.running_s;
  return html`<section class="card standing" aria-label="Progress">
    <div class="standing-line">
      <span class="big" data-testid="percent">${Math.floor(job.progress.percent)} %</span>
      <span class="standing-text">${job.status === "failed" ? "" : standing(job)}</span>
      <span class="sub">${spent === null ? `waits ${duration(job.durations.queued_s)}` : `${ended ? "ran" : "running"} ${duration(spent)}`}</span>
    </div>
    <${StageBar} job=${job} />
    <${StageLegend} job=${job} />
    ${!ended && job.status_reason && html`<p class="notice is-warning">${job.status_reason.message}</p>`}
    <${Failure} job=${job} />
  </section>`;
}

function Failure({ job }) {
  if (job.status !== "failed") return null;
  const { error } = job;
  return html`<div class="notice is-bad failure" role="group" aria-label="Why it failed">
    <strong>Failed: ${(error?.reason ?? job.status_reason?.code ?? "unknown").replaceAll("_", " ")}</strong>
    <p>${error?.message ?? job.status_reason?.message}</p>
    ${error?.where && html`<p>Where: <code>${error.where}</code></p>`}
    ${error?.hint && html`<p class="todo">What to do: ${error.hint}</p>`}
    ${error?.docs && html`<p class="hint">More in <code>${error.docs}</code>.</p>`}
  </div>`;
}
