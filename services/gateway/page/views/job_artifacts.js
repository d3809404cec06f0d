/** The files that a job's finished stages left, each to be downloaded. */

import { api, path } from "../core/api.js";
import { bytes } from "../core/format.js";
import { useReading } from "../core/live.js";
import { html, useEffect } from "../core/ui.js";
import { Empty, Loading, Problem } from "../parts/common.js";

export function Artifacts({ job }) {
  const { data, error, nudge } = useReading(() => api(path`/v1/jobs/${job.id}/artifacts`), [job.id]);
  const finished = job.stages.filter(({ finished_at }) => finished_at).length;
  useEffect(nudge, [finished]);
  if (error && !data) return html`<${Problem} error=${error} />`;
  if (!data) return html`<${Loading} />`;
  if (data.data.length === 0) return html`<${Empty} title="No files yet.">A stage's files are here when it has finished.<//>`;
  const stages = [...new Set(data.data.map(({ stage }) => stage))];
  return stages.map(
    (stage) => html`<section class="card" key=${stage} aria-label=${`Files of ${stage}`}>
      <h2>${stage}</h2>
      <${Files} files=${data.data.filter((file) => file.stage === stage)} label=${`Files of ${stage}`} />
    </section>`,
  );
}

/** A table of files with their sizes and SHA-256. */
export function Files({ files, label }) {
  return html`<div class="table-wrap" tabindex="0" role="region" aria-label=${label}>
    <table class="files">
      <thead>
        <tr><th>File</th><th class="num">Size</th><th>SHA-256</th></tr>
      </thead>
      <tbody>
        ${files.map(
          (file) => html`<tr key=${file.path}>
            <td><a href=${file.url} download=${file.path.split("/").at(-1)}>${file.path}</a></td>
            <td class="num">${bytes(file.size)}</td>
            <td><code title=${file.sha256}>${file.sha256.slice(0, 12)}…</code></td>
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}
