/** One draft: its evaluation, tags, files and lineage. */

import { api, path } from "../core/api.js";
import { bytes } from "../core/format.js";
import { useReading } from "../core/live.js";
import { go, link } from "../core/router.js";
import { html, useState } from "../core/ui.js";
import { Ago, Confirm, Copy, Facts, Heading, Loading, Problem } from "../parts/common.js";
import { Evaluation, Gate } from "../parts/evaluation.js";
import { Files } from "./job_artifacts.js";
import { Lineage } from "./lineage.js";

export function DraftView({ id }) {
  const { data: draft, error, reload } = useReading(() => api(path`/v1/drafts/${id}`), [id]);
  const files = useReading(() => api(path`/v1/drafts/${id}/files`), [id]).data;
  const [asked, setAsked] = useState(false);
  if (error && !draft && !error.isOutage) {
    return html`<${Heading} title="Draft" /><${Problem} error=${error}><a href=${link(["drafts"])}>All drafts</a><//>`;
  }
  if (!draft) return html`<${Loading} />`;
  const remove = async () => {
    await api(path`/v1/drafts/${draft.id}`, { method: "DELETE" });
    go(link(["drafts"]));
  };
  return html`<${Heading} title=${draft.id} below=${html`<${Below} draft=${draft} />`}>
      <a class="button" href=${link(["jobs", draft.job_id])}>Its job</a>
      <button type="button" class="button is-danger-quiet" onClick=${() => setAsked(true)}>Delete</button>
    <//>
    ${asked &&
    html`<${Confirm} title=${`Delete ${draft.id}?`} yes="Delete the draft" danger onYes=${remove} onClose=${() => setAsked(false)}>
      Its record is removed for good; its files are cleared away when nothing else uses them.
    <//>`}
    <div class="columns">
      <section class="card" aria-labelledby="acceptance">
        <h2 id="acceptance">Acceptance</h2>
        ${draft.evaluation.suites ? html`<${Evaluation} report=${draft.evaluation} />` : html`<p class="sub">Not measured.</p>`}
      </section>
      <section class="card" aria-labelledby="tags">
        <h2 id="tags">Tags</h2>
        <${Tags} draft=${draft} onDone=${reload} />
        <h2>About</h2>
        <${Facts} entries=${[["Verifier", draft.verifier], ["Algorithm", draft.algorithm], ["Size", bytes(draft.bytes)]]} />
        <h2>Take it</h2>
        <pre class="code" tabindex="0" aria-label="Command" role="region">eyrie download ${draft.id} --to my-draft</pre>
      </section>
    </div>
    ${files && html`<section class="card" aria-labelledby="files"><h2 id="files">Files</h2><${Files} files=${files.data} label="Files" /></section>`}
    <${Lineage} draft=${draft.id} />`;
}

function Below({ draft }) {
  return html`<div class="below">
    <${Gate} value=${draft.gate} /><${Copy} text=${draft.id} />
    <span>made <${Ago} at=${draft.created_at} /></span>
    ${(draft.tags ?? []).map((tag) => html`<span class="tag" key=${tag}>${tag}</span>`)}
  </div>`;
}

function Tags({ draft, onDone }) {
  const [text, setText] = useState("");
  const [error, setError] = useState(null);
  const call = async (method, tag) => {
    setError(null);
    try {
      await api(path`/v1/drafts/${draft.id}/tags/${tag}`, { method });
      setText("");
      await onDone();
    } catch (failure) {
      setError(failure);
    }
  };
  const add = (event) => {
    event.preventDefault();
    if (text.trim()) call("PUT", text.trim());
  };
  return html`<ul class="tag-list">
      ${(draft.tags ?? []).map(
        (tag) => html`<li key=${tag}>
          <span class="tag">${tag}</span>
          <button type="button" class="button is-small" aria-label=${`Remove the tag ${tag}`} onClick=${() => call("DELETE", tag)}>Remove</button>
        </li>`,
      )}
    </ul>
    <form class="inline-form" onSubmit=${add}>
      <label>Tag <input value=${text} onInput=${(event) => setText(event.target.value)} placeholder="production" maxlength="64" /></label>
      <button type="submit" class="button">Add</button>
    </form>
    <p class="sub">A tag belongs to one draft: giving it to this one takes it from another. A draft that missed its gate gets none.</p>
    <${Problem} error=${error} />`;
}
