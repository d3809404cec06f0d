/** What a draft was made from: a tree from the draft back to the files of its datasets, each by hash. */

import { api, path } from "../core/api.js";
import { bytes, number } from "../core/format.js";
import { useReading } from "../core/live.js";
import { html } from "../core/ui.js";
import { Empty, Loading, Problem, Status } from "../parts/common.js";

export function Lineage({ draft }) {
  const { data, error } = useReading(draft ? () => api(path`/v1/drafts/${draft}/lineage`) : null, [draft]);
  if (!draft) return html`<${Empty} title="No lineage yet.">A job has one when it has published its draft.<//>`;
  if (error && !data) return html`<${Problem} error=${error} />`;
  if (!data) return html`<${Loading} />`;
  return html`<section class="card" aria-labelledby="lineage">
    <h2 id="lineage">Lineage</h2>
    <p>
      <${Status} value=${data.verified ? "succeeded" : "failed"} label=${data.verified ? "verified" : "changed"} />
      ${" "}${data.checked === "sizes" ? "Hashes of manifests, and sizes of files." : "Content of all files."}
    </p>
    <ul class="tree"><${Node} node=${data.tree} /></ul>
  </section>`;
}

function Node({ node }) {
  const size = [
    node.facts?.rows !== undefined && `${number(node.facts.rows)} rows`,
    node.files && `${node.files} ${node.files === 1 ? "file" : "files"}`,
    node.bytes !== null && node.bytes !== undefined && bytes(node.bytes),
  ].filter(Boolean);
  return html`<li>
    <div class="tree-node">
      <span class="kind">${node.kind}</span>
      <strong>${node.facts?.name ?? node.name}</strong>
      <code title=${node.digest}>${node.digest.slice(0, 12)}</code>
      <span class="sub">${size.join(" · ")}${node.ref ? " see above" : ""}</span>
      ${!node.verified && html`<${Status} value="failed" label="changed" />`}
      ${node.problems.map((problem) => html`<p class="tree-problem">${problem}</p>`)}
    </div>
    ${node.inputs.length > 0 && html`<ul>${node.inputs.map((input) => html`<${Node} node=${input} />`)}</ul>`}
  </li>`;
}
