/** All drafts: how well each guesses, gate and tags; tick some to lay them side by side. */

import { api, query } from "../core/api.js";
import { bytes, number, tokens } from "../core/format.js";
import { useChanges, useReading } from "../core/live.js";
import { go, link } from "../core/router.js";
import { html, useEffect, useState } from "../core/ui.js";
import { Ago, Empty, Heading, Loading, Pager, Problem } from "../parts/common.js";
import { Gate, gain } from "../parts/evaluation.js";

const FILTERS = ["gate", "tag", "verifier"];
const PAGE_SIZE = 25;
const MOST_COMPARED = 8;

export function DraftsView({ params }) {
  const filters = Object.fromEntries(FILTERS.map((name) => [name, params.get(name) ?? ""]));
  const [trail, setTrail] = useState([]);
  const [ticked, setTicked] = useState([]);
  useEffect(() => setTrail([]), [JSON.stringify(filters)]);
  const url = `/v1/drafts${query({ ...filters, limit: PAGE_SIZE, after: trail.at(-1) })}`;
  const { data, error, nudge } = useReading(() => api(url), [url]);
  useChanges(nudge);
  const tick = (id) => (event) => setTicked(event.target.checked ? [...ticked, id] : ticked.filter((one) => one !== id));
  const compare = () => go(link(["compare"], { draft: ticked }));

  return html`<${Heading} title="Drafts">
      <button type="button" class="button is-primary" disabled=${ticked.length < 2 || ticked.length > MOST_COMPARED} onClick=${compare}>
        Compare ${ticked.length || ""}
      </button>
    <//>
    <${Filters} filters=${filters} />
    <${Problem} error=${error && !error.isOutage ? error : null} />
    ${!data && !error && html`<${Loading} />`}
    ${data?.data.length === 0 &&
    html`<${Empty} title="No drafts.">A job that succeeds publishes one: <a href=${link(["submit"])}>submit a job</a>.<//>`}
    ${data?.data.length > 0 &&
    html`<p class="sub">Tick two to ${MOST_COMPARED} drafts to compare them.</p>
      <ul class="draft-list" aria-label="Drafts">
        ${data.data.map(
          (draft) => html`<${DraftRow} key=${draft.id} draft=${draft} ticked=${ticked.includes(draft.id)} onTick=${tick(draft.id)} />`,
        )}
      </ul>`}
    <${Pager} trail=${trail} setTrail=${setTrail} page=${data} />`;
}

function DraftRow({ draft, ticked, onTick }) {
  const [suite, measured] = Object.entries(draft.evaluation.suites ?? {})[0] ?? [null, {}];
  return html`<li class="draft-row" data-draft=${draft.id}>
    <input type="checkbox" checked=${ticked} onChange=${onTick} aria-label=${`Compare ${draft.id}`} />
    <div class="draft-name">
      <a href=${link(["drafts", draft.id])}>${draft.id}</a>
      <span class="sub">${draft.verifier.split("/").at(-1)} · ${draft.algorithm} · ${bytes(draft.bytes)}</span>
    </div>
    <div class="tags">${(draft.tags ?? []).map((tag) => html`<span class="tag" key=${tag}>${tag}</span>`)}</div>
    <div class="draft-length">
      ${suite && html`<strong>${tokens(measured.trained?.acceptance_length)}</strong>`}
      ${gain(measured) && html`<span> ×${number(gain(measured))}</span>`}
      <span class="sub">${suite ? `acceptance length, ${suite}` : "not measured"}</span>
    </div>
    <div><${Gate} value=${draft.gate} /></div>
    <div class="sub"><${Ago} at=${draft.created_at} /></div>
  </li>`;
}

function Filters({ filters }) {
  const set = (name) => (event) => go(link(["drafts"], { ...filters, [name]: event.target.value.trim() }), true);
  return html`<form class="filters" role="search" aria-label="Filter drafts" onSubmit=${(event) => event.preventDefault()}>
    <label>Gate
      <select onChange=${set("gate")}>
        <option value="">any</option>
        ${["passed", "failed", "none"].map((gate) => html`<option value=${gate} selected=${filters.gate === gate}>${gate}</option>`)}
      </select>
    </label>
    <label>Tag <input value=${filters.tag} onChange=${set("tag")} placeholder="any" /></label>
    <label>Verifier <input value=${filters.verifier} onChange=${set("verifier")} placeholder="any" /></label>
    ${Object.values(filters).some(Boolean) && html`<a class="button" href=${link(["drafts"])}>Clear</a>`}
  </form>`;
}
