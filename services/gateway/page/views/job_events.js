/** What happened to a job, newest first, as it happens. */

import { path } from "../core/api.js";
import { moment, number } from "../core/format.js";
import { useStream } from "../core/live.js";
import { html, useEffect, useRef, useState } from "../core/ui.js";
import { Empty } from "../parts/common.js";

const TYPES = {
  job: "states",
  stage: "stages",
  warning: "warnings",
  checkpoint: "checkpoints",
  metric: "metrics",
  training_started: "stages",
  verifier_loading: "stages",
  verifier_ready: "stages",
  waiting: "stages",
};
const KEPT = 2000;
const SHOWN_METRICS = ["loss", "val_loss", "lr", "tokens_per_s", "epoch"];

export function Events({ job }) {
  const [events, setEvents] = useState([]);
  const [hideMetrics, setHideMetrics] = useState(true);
  const waiting = useRef([]);
  const take = (message) => {
    waiting.current.push(JSON.parse(message.data));
  };
  useEffect(() => {
    const timer = setInterval(() => {
      if (waiting.current.length === 0) return;
      const fresh = waiting.current.splice(0).reverse();
      setEvents((before) => unique([...fresh, ...before]).slice(0, KEPT));
    }, 250);
    return () => clearInterval(timer);
  }, []);
  useStream(path`/v1/jobs/${job.id}/events`, {
    on: Object.fromEntries(Object.keys(TYPES).map((type) => [type, take])),
    ends: true,
  });
  const shown = hideMetrics ? events.filter(({ type }) => type !== "metric") : events;
  return html`<section class="card" aria-labelledby="events">
    <div class="card-head">
      <h2 id="events">Events</h2>
      <label class="check">
        <input type="checkbox" checked=${hideMetrics} onChange=${(event) => setHideMetrics(event.target.checked)} />
        Without metrics
      </label>
    </div>
    ${shown.length === 0
      ? html`<${Empty} title="No events." />`
      : html`<ol class="events" tabindex="0" aria-labelledby="events">
          ${shown.map(
            (event) => html`<li key=${event.id} class=${`event is-${event.type}`}>
              <time datetime=${event.at}>${moment(event.at)}</time>
              <span class="kind">${event.type.replaceAll("_", " ")}</span>
              <span>${inWords(event)}</span>
            </li>`,
          )}
        </ol>`}
  </section>`;
}

function unique(events) {
  const seen = new Set();
  return events.filter(({ id }) => !seen.has(id) && seen.add(id));
}

function inWords({ type, data }) {
  if (type === "metric") {
    const values = data.values ?? data;
    const known = SHOWN_METRICS.filter((name) => Number.isFinite(values[name]));
    return `${data.stage} step ${data.step}: ${known.map((name) => `${name} ${number(values[name])}`).join(", ")}`;
  }
  const { message, type: _, ...rest } = data;
  const facts = Object.entries(rest).filter(([, value]) => value !== null && value !== "" && typeof value !== "object");
  return [message, facts.map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(", ")].filter(Boolean).join(" · ");
}
