/** What the stages' processes write, as they write it; one stage or all. */

import { path, query } from "../core/api.js";
import { useStream } from "../core/live.js";
import { go, link } from "../core/router.js";
import { html, useEffect, useRef, useState } from "../core/ui.js";

const TAIL = 1000;
const KEPT_LINES = 20000;
const FLUSH_MS = 150;

export function Logs({ job, params }) {
  const stage = params.get("stage") ?? "";
  const attempt = params.get("attempt") ?? "";
  const choose = (values) => go(link(["jobs", job.id, "logs"], { stage, attempt, ...values }), true);
  const runs = job.stages.find(({ name }) => name === stage)?.attempt ?? 0;
  const text = path`/v1/jobs/${job.id}/logs` + query({ stage, attempt });
  return html`<section class="card" aria-labelledby="logs">
    <div class="card-head">
      <h2 id="logs">Logs</h2>
      <label>Stage
        <select onChange=${(event) => choose({ stage: event.target.value, attempt: "" })}>
          <option value="">all, as they come</option>
          ${job.stages.map(({ name }) => html`<option value=${name} selected=${name === stage}>${name}</option>`)}
        </select>
      </label>
      ${stage &&
      runs > 1 &&
      html`<label>Run
        <select onChange=${(event) => choose({ attempt: event.target.value })}>
          <option value="">all</option>
          ${Array.from({ length: runs }, (_, i) => String(i + 1)).map(
            (run) => html`<option value=${run} selected=${run === attempt}>${run}</option>`,
          )}
        </select>
      </label>`}
      <a href=${text} download=${`${job.id}${stage && `-${stage}`}.log`}>Download</a>
    </div>
    <${Tail} key=${`${stage}/${attempt}`} job=${job} stage=${stage} attempt=${attempt} />
  </section>`;
}

function Tail({ job, stage, attempt }) {
  const [follow, setFollow] = useState(true);
  const [count, setCount] = useState(0);
  const [ended, setEnded] = useState(false);
  const pane = useRef(null);
  const state = useRef({ waiting: [], seen: new Set(), last: null, heading: null, following: true });
  state.current.following = follow;

  const from = (place) => path`/v1/jobs/${job.id}/logs` + query({ follow: "true", stage, attempt, ...place });
  useStream(from({ tail: TAIL }), {
    again: () => from(state.current.last ? { after: state.current.last } : { tail: TAIL }),
    on: {
      line: (message) => {
        const { waiting, seen } = state.current;
        if (message.lastEventId && seen.has(message.lastEventId)) return; // the stream was opened anew
        seen.add(message.lastEventId);
        state.current.last = message.lastEventId;
        waiting.push(JSON.parse(message.data));
      },
      end: () => setEnded(true),
    },
    ends: true,
  });
  useEffect(() => {
    const timer = setInterval(() => {
      const { waiting } = state.current;
      if (waiting.length === 0 || !pane.current) return; // the view may be gone before its timer
      append(pane.current, waiting.splice(0), state.current);
      setCount(pane.current.childElementCount);
      if (state.current.following) pane.current.scrollTop = pane.current.scrollHeight;
    }, FLUSH_MS);
    return () => clearInterval(timer);
  }, []);
  const onScroll = (event) => {
    const { scrollTop, clientHeight, scrollHeight } = event.currentTarget;
    setFollow(scrollHeight - scrollTop - clientHeight < 30);
  };
  const toEnd = () => {
    pane.current.scrollTop = pane.current.scrollHeight;
    setFollow(true);
  };
  const words = count === 0 ? (ended ? "Nothing was written." : "Nothing was written yet.") : ended ? "The job has ended." : follow ? "Follows what is written." : "Stands still while you read.";

  return html`<div class="log-place">
      <pre class="log" ref=${pane} tabindex="0" role="region" aria-labelledby="logs" onScroll=${onScroll}></pre>
      ${!follow && html`<button type="button" class="button log-end" onClick=${toEnd}>↓ To the end</button>`}
    </div>
    <p class="sub" role="status">${words}</p>`;
}

/** Add lines as text, with a heading where another stage or run begins; the oldest give way. */
function append(pane, lines, state) {
  const fresh = document.createDocumentFragment();
  for (const { stage, attempt, line } of lines) {
    const heading = `${stage}, run ${attempt}`;
    if (heading !== state.heading) fresh.append(lineOf(heading, "log-heading"));
    state.heading = heading;
    fresh.append(lineOf(line, "log-line"));
  }
  pane.append(fresh);
  while (pane.childElementCount > KEPT_LINES) pane.firstElementChild.remove();
}

function lineOf(text, kind) {
  const element = document.createElement("span");
  element.className = kind;
  element.textContent = `${text}\n`;
  return element;
}
