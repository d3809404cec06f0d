/** Line charts by uPlot, each with a summary and a table of the same numbers for those who do not see it. */

import { number } from "../core/format.js";
import { classes, html, useEffect, useLayoutEffect, useRef, useState } from "../core/ui.js";
import uPlot from "../vendor/uplot/uPlot.js";

const HEIGHT = 260;
const TABLE_ROWS = 40;
const DASHES = [[], [6, 4], [2, 3]];

/**
 * @param {string} title what the chart shows
 * @param {string} unit of the horizontal axis
 * @param {number[]} xs ascending
 * @param {{label: string, values: (number|null)[], color: string, dash?: number, points?: boolean}[]} series `color` is
 *   the name of a CSS variable, `dash` the kind of line
 * @param {(value: number) => string} [show] how a value is written
 * @param {(value: number) => string} [showTick] the same on the vertical axis
 * @param {[number, number]} [range] of the vertical axis
 */
export function Chart({ title, unit, xs, series, show = number, showTick = show, range }) {
  const scheme = useScheme();
  const place = useRef(null);
  const plot = useRef(null);
  const shape = JSON.stringify([scheme, series.map(({ label, color, dash, points }) => [label, color, dash, points]), range]);
  const data = [xs, ...series.map(({ values }) => values)];

  useLayoutEffect(() => {
    plot.current = new uPlot(options(place.current, unit, series, show, showTick, range), data, place.current);
    const observer = new ResizeObserver(() => resize(plot.current, place.current));
    observer.observe(place.current);
    return () => {
      observer.disconnect();
      plot.current.destroy();
    };
  }, [shape]);
  useEffect(() => plot.current.setData(data), [xs.length, xs.at(-1), JSON.stringify(series.map(({ values }) => values.at(-1)))]);

  return html`<figure class="chart">
    <figcaption class="chart-summary">${summary(xs, series, show, unit)}</figcaption>
    <div class="chart-place" ref=${place} role="img" aria-label=${`${title}, by ${unit}; the numbers are in the table below`}></div>
    <details class="chart-table">
      <summary>${title} as a table</summary>
      <${Table} title=${title} unit=${unit} xs=${xs} series=${series} show=${show} />
    </details>
  </figure>`;
}

function Table({ title, unit, xs, series, show }) {
  const every = Math.max(1, Math.ceil(xs.length / TABLE_ROWS));
  const rows = xs.map((x, i) => i).filter((i) => i % every === 0 || i === xs.length - 1);
  return html`<div class="table-wrap" tabindex="0" role="region" aria-label=${title}>
    <table>
      <thead>
        <tr><th class="num">${unit}</th>${series.map(({ label }) => html`<th class="num">${label}</th>`)}</tr>
      </thead>
      <tbody>
        ${rows.map(
          (i) => html`<tr key=${xs[i]}>
            <td class="num">${number(xs[i])}</td>
            ${series.map(({ values }) => html`<td class="num">${values[i] === null ? "" : show(values[i])}</td>`)}
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

function summary(xs, series, show, unit) {
  if (xs.length === 0) return "No numbers yet.";
  return series
    .map(({ label, values, color, dash }) => {
      const known = values.filter((value) => value !== null && value !== undefined);
      if (known.length === 0) return null;
      const [first, last] = [show(known[0]), show(known.at(-1))];
      return html`<span class="chart-key"
        ><span class=${classes("swatch", dash > 0 && "is-dashed")} style=${{ backgroundColor: `var(${color})` }} aria-hidden="true"></span>${label}:
        <strong>${last}</strong>${known.length > 1 ? ` from ${first}` : ""}</span
      >`;
    })
    .concat(html`<span class="chart-key sub">${unit} ${number(xs.at(-1))}</span>`);
}

function options(place, unit, series, show, showTick, range) {
  const style = getComputedStyle(place);
  const color = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") }, font: `12px ${style.fontFamily}` };
  return {
    width: Math.max(place.clientWidth, 200),
    height: HEIGHT,
    scales: { x: { time: false }, ...(range && { y: { range } }) },
    legend: { show: false },
    cursor: { y: false, points: { size: 7 } },
    axes: [
      { ...axis, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? number(tick) : "")) },
      { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => showTick(tick)) },
    ],
    series: [
      { label: unit },
      ...series.map(({ label, color: name, dash = 0, points }) => ({
        label,
        stroke: color(name),
        width: 2,
        dash: DASHES[dash],
        spanGaps: true,
        points: points ? { show: true, size: 6 } : {},
      })),
    ],
    hooks: { setCursor: [(chart) => showTip(chart, unit, show)], ready: [addTip] },
  };
}

/** A box with the values under the pointer. */
function addTip(chart) {
  chart.tip = document.createElement("div");
  chart.tip.className = "chart-tip";
  chart.tip.hidden = true;
  chart.over.append(chart.tip);
}

function showTip(chart, unit, show) {
  const { idx, left } = chart.cursor;
  if (!chart.tip) return;
  chart.tip.hidden = idx === null || idx === undefined || left < 0;
  if (chart.tip.hidden) return;
  const lines = chart.series.slice(1).flatMap((one, i) => {
    const value = chart.data[i + 1][idx];
    return value === null || value === undefined ? [] : [`${one.label}: ${show(value)}`];
  });
  chart.tip.textContent = [`${unit} ${number(chart.data[0][idx])}`, ...lines].join("\n");
  const right = left > chart.over.clientWidth / 2;
  chart.tip.style.left = right ? "auto" : `${left + 12}px`;
  chart.tip.style.right = right ? `${chart.over.clientWidth - left + 12}px` : "auto";
}

function resize(chart, place) {
  const width = Math.max(place.clientWidth, 200);
  if (Math.abs(width - chart.width) > 1) chart.setSize({ width, height: HEIGHT });
}

/** `dark` or `light`: canvases do not follow the page's colours by themselves. */
function useScheme() {
  const [media] = useState(() => matchMedia("(prefers-color-scheme: dark)"));
  const [dark, setDark] = useState(media.matches);
  useEffect(() => {
    const follow = () => setDark(media.matches);
    media.addEventListener("change", follow);
    return () => media.removeEventListener("change", follow);
  }, [media]);
  return dark ? "dark" : "light";
}
