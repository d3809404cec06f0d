/** The document of a job, with everything that its preset filled in. */

import { link } from "../core/router.js";
import { html } from "../core/ui.js";

export function JobDocument({ job }) {
  const text = JSON.stringify(job.spec, null, 2);
  return html`<section class="card" aria-labelledby="document">
    <h2 id="document">Resolved document</h2>
    <p class="sub">
      As it is stored with the job; <a href=${link(["submit"], { from: job.id })}>submit another like it</a>,
      or${" "}<code>eyrie show ${job.id} --output json</code>.
    </p>
    <pre class="code" tabindex="0" role="region" aria-labelledby="document">${text}</pre>
  </section>`;
}
