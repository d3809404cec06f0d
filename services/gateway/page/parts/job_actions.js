/** What a person can ask of a job in its state: pause, resume, cancel, retry, delete. What cannot be undone asks first. */

import { api, path } from "../core/api.js";
import { go, link } from "../core/router.js";
import { classes, html, useState } from "../core/ui.js";
import { Confirm, Problem } from "./common.js";

const ACTIONS = {
  pause: { title: "Pause", when: ["queued", "running"] },
  resume: { title: "Resume", when: ["paused"] },
  retry: { title: "Retry", when: ["failed", "cancelled"] },
  cancel: {
    title: "Cancel",
    when: ["queued", "running", "pausing", "paused"],
    ask: "Its processes are ended. Finished stages stay in the store, so that a retry takes them over.",
    yes: "Cancel the job",
  },
  delete: {
    title: "Delete",
    when: ["succeeded", "failed", "cancelled"],
    ask: "The job, its events and its logs are removed for good. What its stages made is cleared away later, if nothing else uses it.",
    yes: "Delete the job",
  },
};

export function JobActions({ job, onDone, onDelete, failure }) {
  const [asked, setAsked] = useState(null);
  const [error, setError] = useState(null);
  const offered = Object.entries(ACTIONS).filter(([, { when }]) => when.includes(job.status));

  const act = async (action) => {
    if (action === "delete") {
      onDelete();
      return;
    }
    const answer = await api(path`/v1/jobs/${job.id}/${action}`, { method: "POST" });
    if (action === "retry") go(link(["jobs", answer.id]));
    else await onDone();
  };
  const press = (action) => {
    setError(null);
    if (ACTIONS[action].ask) setAsked(action);
    else act(action).catch(setError);
  };

  return html`<div class="actions" role="group" aria-label="Actions">
      ${offered.map(
        ([action, { title, ask }]) => html`<button
          type="button"
          key=${action}
          class=${classes("button", ask && "is-danger-quiet")}
          onClick=${() => press(action)}
        >
          ${title}
        </button>`,
      )}
    </div>
    ${(error ?? failure) && html`<${Problem} error=${error ?? failure} />`}
    ${asked &&
    html`<${Confirm}
      title=${`${ACTIONS[asked].title} ${job.name || job.id}?`}
      yes=${ACTIONS[asked].yes}
      danger
      onYes=${() => act(asked)}
      onClose=${() => setAsked(null)}
      >${ACTIONS[asked].ask}<//
    >`}`;
}
