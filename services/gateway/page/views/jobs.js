/** All jobs: state, stages, rate and time left, place in line; filters in the address, so that they can be linked. */

import { api, query } from "../core/api.js";
import { duration } from "../core/format.js";
import { useChanges, useReading } from "../core/live.js";
import { go, link } from "../core/router.js";
import { html, useEffect, useState } from "../core/ui.js";
import { Ago, Empty, Heading, Loading, Pager, Problem, Status } from "../parts/common.js";
import { StageBar, rateAndEta } from "../parts/stages.js";

const STATUSES = ["queued", "running", "pausing", "paused", "cancelling", "cancelled", "succeeded", "failed"];
const FILTERS = ["status", "preset", "name", "metadata"];
const PAGE_SIZE = 25;

export function JobsView({ params }) {
  const filters = Object.fromEntries(FILTERS.map((name) => [name, params.get(name) ?? ""]));
  const chosen = JSON.stringify(filters);
  const [trail, setTrail] = useState([]);
  useEffect(() => setTrail([]), [chosen]);
  const url = `/v1/jobs${query({ ...asQuery(filters), limit: PAGE_SIZE, after: trail.at(-1) })}`;
  const { data, error, nudge } = useReading(() => api(url), [url]);
  useChanges(nudge);
  const filtered = Object.values(filters).some(Boolean);

  return html`<${Heading} title="Jobs">
      <a class="button is-primary" href=${link(["submit"])}>Submit a job</a>
    <//>
    <${Filters} filters=${filters} />
    <${Problem} error=${error && !error.isOutage ? error : null} />
    ${!data && !error && html`<${Loading} />`}
    ${data && data.data.length === 0 && html`<${NoJobs} filtered=${filtered} />`}
    ${data &&
    data.data.length > 0 &&
    html`<ul class="job-list" aria-label="Jobs">
      ${data.data.map((job) => html`<${JobRow} key=${job.id} job=${job} />`)}
    </ul>`}
    <${Pager} trail=${trail} setTrail=${setTrail} page=${data} />`;
}

function JobRow({ job }) {
  return html`<li class="job-row" data-job=${job.id} data-status=${job.status}>
    <div class="job-state"><${Status} value=${job.status} /></div>
    <div class="job-name">
      <a href=${link(["jobs", job.id])}>${job.name || job.id}</a>
      <span class="sub">${job.name ? `${job.id} · ` : ""}${job.preset}</span>
    </div>
    <div class="job-bar"><${StageBar} job=${job} /><span class="sub">${standing(job)}</span></div>
    <div class="job-percent">${Math.floor(job.progress.percent)} %</div>
    <div class="job-times"><${Ago} at=${job.created_at} /><span class="sub">${took(job)}</span></div>
  </li>`;
}

/** Where a job stands, in a line. */
export function standing(job) {
  if (job.status === "queued") return job.queue.position ? `number ${job.queue.position} in line` : "waits to be put in line";
  if (job.status === "succeeded") return job.draft ? `published ${job.draft}` : "done";
  if (job.status === "failed") return job.error?.message ?? job.status_reason?.message ?? "failed";
  if (job.status !== "running") return job.progress.stage ? `in ${job.progress.stage}` : "";
  const { rate, eta } = rateAndEta(job);
  const running = job.stages.find(({ status }) => status === "running");
  const activity = running?.progress?.activity;
  return [job.progress.stage, activity, rate, eta && `${eta} left`].filter(Boolean).join(" · ");
}

function took(job) {
  if (job.status === "queued") return "waiting";
  return job.durations.running_s === null ? "" : `ran ${duration(job.durations.running_s)}`;
}

function NoJobs({ filtered }) {
  if (filtered) {
    return html`<${Empty} title="No job matches."><a href=${link(["jobs"])}>Show all jobs</a><//>`;
  }
  return html`<${Empty} title="No jobs yet.">
    A job trains one draft: <a href=${link(["submit"])}>submit the first</a>, or run <code>eyrie submit</code>.
  <//>`;
}

function Filters({ filters }) {
  const set = (name) => (event) => go(link(["jobs"], { ...filters, [name]: event.target.value.trim() }), true);
  return html`<form class="filters" role="search" aria-label="Filter jobs" onSubmit=${(event) => event.preventDefault()}>
    <label>Status
      <select value=${filters.status} onChange=${set("status")}>
        <option value="">any</option>
        ${STATUSES.map((status) => html`<option value=${status} selected=${filters.status === status}>${status}</option>`)}
      </select>
    </label>
    <label>Name <input value=${filters.name} onChange=${set("name")} placeholder="exact name" /></label>
    <label>Preset <input value=${filters.preset} onChange=${set("preset")} placeholder="any" /></label>
    <label>Metadata <input value=${filters.metadata} onChange=${set("metadata")} placeholder="key=value" /></label>
    ${Object.values(filters).some(Boolean) && html`<a class="button" href=${link(["jobs"])}>Clear</a>`}
  </form>`;
}

/** Filters as the API takes them; metadata as `metadata[KEY]=VALUE`. */
function asQuery({ metadata, ...plain }) {
  const [key, ...value] = metadata.split("=");
  return key && value.length > 0 ? { ...plain, [`metadata[${key.trim()}]`]: value.join("=").trim() } : plain;
}
