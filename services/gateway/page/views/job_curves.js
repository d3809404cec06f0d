/** The curves of a training: loss, and the share of right guesses by position; on the training and the held-out split. */

import { api, path, query } from "../core/api.js";
import { percent } from "../core/format.js";
import { useReading, useStream } from "../core/live.js";
import { html, useMemo } from "../core/ui.js";
import { Chart } from "../parts/chart.js";
import { Empty, Problem } from "../parts/common.js";

const POINTS = 600;
const COLORS = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6"];
const ACCURACY = /^(val_)?full_acc_(\d+)$/;

export function Curves({ job, ended }) {
  const url = path`/v1/jobs/${job.id}/metrics` + query({ stage: "train", limit: POINTS, max_points: POINTS });
  const { data, error, nudge } = useReading(() => api(url), [url, ended]);
  useStream(ended ? null : path`/v1/jobs/${job.id}/events` + query({ types: ["metric", "stage"] }), {
    on: { metric: nudge, stage: nudge },
    onOpen: nudge,
    ends: true,
  });
  const points = data?.data ?? [];
  const loss = useMemo(() => table(points, ["loss", "val_loss"]), [points]);
  const accuracy = useMemo(() => table(points, names(points)), [points]);

  if (error && !error.isOutage && error.status !== 404) return html`<${Problem} error=${error} />`;
  const train = job.stages.find(({ name }) => name === "train");
  if (ended && points.length === 0 && train.status !== "reused") return null; // it never came to a training
  return html`<section class="card" aria-labelledby="loss">
      <h2 id="loss">Loss</h2>
      ${loss.xs.length === 0
        ? html`<${NoCurve} train=${train} />`
        : html`<${Chart} title="Loss" unit="step" xs=${loss.xs} series=${lossSeries(loss)} />`}
    </section>
    <section class="card" aria-labelledby="accuracy">
      <h2 id="accuracy">Acceptance by position</h2>
      ${accuracy.xs.length === 0
        ? html`<${NoCurve} train=${train} />`
        : html`<p class="sub">Share of guesses whose positions up to this one are all right.</p>
            <${Chart}
              title="Acceptance by position"
              unit="step"
              xs=${accuracy.xs}
              series=${accuracySeries(accuracy)}
              show=${(share) => percent(share)}
              showTick=${(share) => percent(share, 0)}
              range=${[0, 1]}
            />`}
    </section>`;
}

function NoCurve({ train }) {
  if (train.status === "reused") return html`<${Empty} title="No curve: the training of an equal job was reused." />`;
  return html`<${Empty} title="No numbers yet.">The curve begins with the first training step.<//>`;
}

function lossSeries({ columns }) {
  const all = [
    { name: "loss", label: "training", color: "--series-1" },
    { name: "val_loss", label: "held out", color: "--series-2", points: true },
  ];
  return all.filter(({ name }) => columns[name]).map((one) => ({ ...one, values: columns[one.name] }));
}

function accuracySeries({ columns }) {
  return Object.keys(columns).map((name) => {
    const [, held, position] = ACCURACY.exec(name);
    return {
      label: `${Number(position) + 1}${held ? ", held out" : ""}`,
      values: columns[name],
      color: COLORS[position % COLORS.length],
      dash: held ? 0 : 1,
      points: Boolean(held),
    };
  });
}

/** Names of the accuracies that occur, by position; of each position training first. */
function names(points) {
  const found = new Set(points.flatMap(({ values }) => Object.keys(values).filter((name) => ACCURACY.test(name))));
  const key = (name) => [Number(ACCURACY.exec(name)[2]), name.startsWith("val_") ? 1 : 0];
  return [...found].sort((a, b) => key(a)[0] - key(b)[0] || key(a)[1] - key(b)[1]);
}

/** Points as columns over their steps; several points of one step become one row. */
function table(points, wanted) {
  const rows = new Map();
  for (const { step, values } of points) {
    const known = wanted.filter((name) => Number.isFinite(values[name]));
    if (known.length === 0) continue;
    rows.set(step, { ...rows.get(step), ...Object.fromEntries(known.map((name) => [name, values[name]])) });
  }
  const xs = [...rows.keys()].sort((a, b) => a - b);
  const columns = {};
  for (const name of wanted) {
    const values = xs.map((x) => rows.get(x)[name] ?? null);
    if (values.some((value) => value !== null)) columns[name] = values;
  }
  return { xs, columns };
}
