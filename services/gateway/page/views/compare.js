/** Drafts side by side: acceptance length by suite and position, before and after training, and where their jobs differ. */

import { api, query } from "../core/api.js";
import { number, percent, tokens } from "../core/format.js";
import { useReading } from "../core/live.js";
import { link } from "../core/router.js";
import { html } from "../core/ui.js";
import { Empty, Heading, Loading, Problem } from "../parts/common.js";
import { Gate, Measured } from "../parts/evaluation.js";

export function CompareView({ params }) {
  const chosen = params.getAll("draft");
  const url = `/v1/drafts/compare${query({ draft: chosen })}`;
  const { data, error } = useReading(chosen.length ? () => api(url) : null, [url]);
  const heading = html`<${Heading} title="Compare drafts"><a class="button" href=${link(["drafts"])}>Choose others</a><//>`;
  if (!chosen.length) return html`${heading}<${Empty} title="No drafts chosen."><a href=${link(["drafts"])}>Choose some</a><//>`;
  if (error && !data && !error.isOutage) return html`${heading}<${Problem} error=${error} />`;
  if (!data) return html`${heading}<${Loading} />`;
  const names = data.differences.find(({ path }) => path === "/name")?.values ?? {};
  return html`${heading}
    <${Drafts} drafts=${data.drafts} names=${names} />
    ${data.suites.map((suite) => html`<${Suite} key=${suite.name} suite=${suite} names=${names} />`)}
    <${Differences} differences=${data.differences} drafts=${data.drafts} names=${names} />`;
}

function Drafts({ drafts, names }) {
  return html`<ul class="compared" aria-label="Drafts compared">
    ${drafts.map(
      (draft) => html`<li class="card" key=${draft.id}>
        <a href=${link(["drafts", draft.id])}>${names[draft.id] ?? draft.id}</a>
        ${names[draft.id] && html`<div class="sub break">${draft.id}</div>`}
        <div class="below">
          <${Gate} value=${draft.gate} />
          ${(draft.tags ?? []).map((tag) => html`<span class="tag" key=${tag}>${tag}</span>`)}
        </div>
        <span class="sub">job <a href=${link(["jobs", draft.job_id])}>${draft.job_id}</a></span>
      </li>`,
    )}
  </ul>`;
}

function Suite({ suite, names }) {
  const id = `suite-${suite.name}`;
  const longest = suite.num_speculative_tokens + 1;
  const best = Math.max(...suite.entries.map((entry) => entry.acceptance_length ?? 0));
  return html`<section class="card compare" aria-labelledby=${id}>
    <h2 id=${id}>${suite.name}</h2>
    ${suite.entries.map(
      (entry) => html`<${Measured}
        key=${entry.draft}
        name=${html`${names[entry.draft] ?? entry.draft}${entry.acceptance_length === best && suite.entries.length > 1 ? html` <span class="tag is-best">longest</span>` : ""}`}
        value=${entry}
        longest=${longest}
        before=${entry.untrained?.acceptance_length}
      />`,
    )}
    <${Table} suite=${suite} names=${names} label=${`Figures of ${suite.name}`} />
    <p class="sub">The mark in a bar is the draft before training. Lengths lie between 1 and ${longest}.</p>
  </section>`;
}

function Table({ suite, names, label }) {
  const positions = Array.from({ length: suite.num_speculative_tokens }, (_, i) => i);
  const change = (now, before) => (before === null || before === undefined ? "" : html` <span class="sub">from ${percent(before, 0)}</span>`);
  return html`<div class="table-wrap" tabindex="0" role="region" aria-label=${label}>
    <table>
      <thead>
        <tr>
          <th>Draft</th><th class="num">Before</th><th class="num">After</th><th class="num">Gain</th>
          ${positions.map((i) => html`<th class="num">Position ${i + 1}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${suite.entries.map(
          (entry) => html`<tr key=${entry.draft}>
            <td><a href=${link(["drafts", entry.draft])} title=${entry.draft}>${names[entry.draft] ?? entry.draft}</a></td>
            <td class="num">${tokens(entry.untrained?.acceptance_length)}</td>
            <td class="num"><strong>${tokens(entry.acceptance_length)}</strong></td>
            <td class="num">${entry.gain ? `×${number(entry.gain)}` : "–"}</td>
            ${positions.map(
              (i) => html`<td class="num">${percent(entry.per_position[i], 0)}${change(entry.per_position[i], entry.untrained?.per_position?.[i])}</td>`,
            )}
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

function Differences({ differences, drafts, names }) {
  return html`<section class="card" aria-labelledby="differences">
    <h2 id="differences">Where their jobs differ</h2>
    ${differences.length === 0
      ? html`<p class="sub">Nowhere: their documents are equal.</p>`
      : html`<div class="table-wrap" tabindex="0" role="region" aria-labelledby="differences">
          <table>
            <thead><tr><th>Field</th>${drafts.map(({ id }) => html`<th title=${id}>${names[id] ?? id}</th>`)}</tr></thead>
            <tbody>
              ${differences.map(
                ({ path, values }) => html`<tr key=${path}>
                  <td><code>${path}</code></td>
                  ${drafts.map(({ id }) => html`<td>${inText(values[id])}</td>`)}
                </tr>`,
              )}
            </tbody>
          </table>
        </div>`}
  </section>`;
}

const inText = (value) => (value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
