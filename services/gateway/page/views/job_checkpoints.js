/** The checkpoints of a training: at which step, what for, and how good. */

import { api, path } from "../core/api.js";
import { number } from "../core/format.js";
import { useReading } from "../core/live.js";
import { html, useEffect } from "../core/ui.js";
import { Ago } from "../parts/common.js";

const SHOWN = ["loss", "val_loss", "estimated_acceptance_length", "val_estimated_acceptance_length"];

export function Checkpoints({ job }) {
  const { data, nudge } = useReading(() => api(path`/v1/jobs/${job.id}/checkpoints`), [job.id]);
  useEffect(nudge, [job.updated_at]);
  if (!data?.data?.length) return null;
  return html`<section class="card" aria-labelledby="checkpoints">
    <h2 id="checkpoints">Checkpoints</h2>
    <div class="table-wrap" tabindex="0" role="region" aria-labelledby="checkpoints">
      <table>
        <thead>
          <tr><th>Step</th><th>Epoch</th><th>Kept as</th><th>Figures</th><th>Made</th></tr>
        </thead>
        <tbody>
          ${data.data.map(
            (point) => html`<tr key=${point.id}>
              <td class="num">${number(point.step)}</td>
              <td class="num">${number(point.epoch)}</td>
              <td>${[point.kind].flat().join(", ")}${point.available === false ? " (gone)" : ""}</td>
              <td>${figures(point.metrics)}</td>
              <td><${Ago} at=${point.at} /></td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  </section>`;
}

function figures(metrics) {
  const known = SHOWN.filter((name) => Number.isFinite(metrics?.[name]));
  return known.map((name) => `${name.replaceAll("_", " ")} ${number(metrics[name])}`).join(", ") || "–";
}
