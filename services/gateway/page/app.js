/** The page: header, the view that the address names, and whether what it shows is live. */

import { api } from "./core/api.js";
import { retryNow, useConnection } from "./core/connection.js";
import { duration } from "./core/format.js";
import { useNow } from "./core/live.js";
import { link, useRoute } from "./core/router.js";
import { classes, html, render, useEffect, useState } from "./core/ui.js";
import { Empty, Heading } from "./parts/common.js";
import { CompareView } from "./views/compare.js";
import { DraftView } from "./views/draft.js";
import { DraftsView } from "./views/drafts.js";
import { FleetView } from "./views/fleet.js";
import { JobView } from "./views/job.js";
import { JobsView } from "./views/jobs.js";
import { SubmitView } from "./views/submit.js";

const PLACES = [
  ["jobs", "Jobs"],
  ["submit", "Submit"],
  ["drafts", "Drafts"],
  ["fleet", "Fleet"],
];

function App() {
  const route = useRoute();
  const [place = "jobs", id] = route.parts;
  const current = place === "compare" ? "drafts" : place;
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to content</a>
    <header class="top">
      <a class="brand" href=${link(["jobs"])}><img src="/page/icon.svg" alt="" width="26" height="26" />Eyrie</a>
      <nav class="places" aria-label="Main">
        ${PLACES.map(
          ([name, title]) =>
            html`<a href=${link([name])} aria-current=${current === name ? "page" : undefined}>${title}</a>`,
        )}
        <a href="/docs">API</a>
      </nav>
      <${Liveness} />
      <${SignOut} />
    </header>
    <${StaleNotice} />
    <main id="main" tabindex="-1">${view(place, id, route)}</main>`;
}

function view(place, id, route) {
  if (place === "jobs" && id) return html`<${JobView} key=${id} id=${id} tab=${route.parts[2]} params=${route.params} />`;
  if (place === "jobs") return html`<${JobsView} params=${route.params} />`;
  if (place === "submit") return html`<${SubmitView} params=${route.params} />`;
  if (place === "drafts" && id) return html`<${DraftView} key=${id} id=${id} />`;
  if (place === "drafts") return html`<${DraftsView} params=${route.params} />`;
  if (place === "compare") return html`<${CompareView} params=${route.params} />`;
  if (place === "fleet") return html`<${FleetView} />`;
  return html`<${Heading} title="Not found" /><${Empty} title="There is no such view.">
      <a href=${link(["jobs"])}>All jobs</a>
    <//>`;
}

const LIVENESS = { live: "Live", final: "Up to date", connecting: "Connecting…", stale: "Not live" };

function Liveness() {
  const { state } = useConnection();
  return html`<span class=${classes("liveness", `is-${state}`)} data-state=${state}>
    <span class="dot" aria-hidden="true"></span>${LIVENESS[state]}
  </span>`;
}

function StaleNotice() {
  const { state, since } = useConnection();
  return html`<div role="status" class="stale-place">
    ${state === "stale" && html`<${Stale} since=${since} />`}
  </div>`;
}

function Stale({ since }) {
  const now = useNow(1000);
  return html`<div class="stale">
    <span>
      <strong>Connection lost</strong> at ${since.toLocaleTimeString("en-GB")}
      <span aria-hidden="true"> (${duration(Math.round((now - since) / 1000))} ago)</span>. What you see may be out of
      date; trying again by itself.
    </span>
    <button type="button" class="button" onClick=${retryNow}>Try now</button>
  </div>`;
}

/** Ends the session, where the gateway asks for keys. */
function SignOut() {
  const [keys, setKeys] = useState(0);
  useEffect(() => {
    api("/v1/api-keys?limit=1").then((page) => setKeys(page.data.length), () => {});
  }, []);
  const leave = async () => {
    await api("/session", { method: "DELETE" });
    location.assign("/login");
  };
  return keys > 0 && html`<button type="button" class="button is-small" onClick=${leave}>Sign out</button>`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

render(html`<${App} />`, document.getElementById("app"));
