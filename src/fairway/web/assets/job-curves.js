// The course of a job as it reported it: loss, speed, batch size, GPUs.

import { h } from "./dom.js";
import { LineChart, indexBefore } from "./line-chart.js";
import { plain } from "./numbers.js";
import { card } from "./table.js";

const CURVES = [
  { key: "loss", label: "loss", index: 0, straight: true, free: true },
  { key: "steps_per_s", label: "steps per second", index: 2, straight: true },
  { key: "batch_size", label: "batch size", index: 4, whole: true },
  { key: "gpus", label: "GPUs", index: 6, whole: true },
];

/** The points that have a value; a curve of steps is drawn until the last time of all. */
function seriesOf(course, { key, label, index, straight }) {
  const at = course.time_s.map((_, i) => i).filter((i) => straight || course[key][i] !== null);
  const x = at.map((i) => course.time_s[i]);
  const y = at.map((i) => course[key][i]);
  return { index, label, x, y, straight, until: straight ? undefined : course.time_s.at(-1) };
}

function domainOf(values, free) {
  const known = values.filter((value) => value !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [free ? low - room : Math.min(0, low), high + room];
}

function valueAt(series, x) {
  const i = indexBefore(series.x, x);
  return i < 0 ? null : series.y[i];
}

/** A card with a small chart for each curve that has values; `set(course)` shows a newer one. */
export function curvesCard() {
  const host = h("div", { class: "curves" });
  const none = h("p", { class: "soft" });
  const node = card("Course", "", none, host);
  const charts = new Map();
  let course = null;
  function panel(curve) {
    const value = h("b", {});
    const chart = h("div", { class: "chart" });
    const box = h("figure", { "data-curve": curve.key }, h("figcaption", {}, h("span", {}, curve.label), value), chart);
    host.append(box);
    const spec = () => {
      const series = seriesOf(course, curve);
      const [first, final] = [course.time_s[0], course.time_s.at(-1)];
      return {
        name: `${curve.label} over time`, small: true, height: 150, series: [series], read: valueAt,
        x: { kind: "clock", domain: [first, Math.max(final, first + 1)] }, y: { kind: curve.whole ? "whole" : "count", domain: domainOf(series.y, curve.free) }, title: (at) => at,
      };
    };
    return { box, value, chart: new LineChart(chart, spec) };
  }
  function set(told) {
    course = told;
    const full = CURVES.filter(({ key }) => told.time_s.length > 1 && told[key].some((value) => value !== null));
    none.hidden = full.length > 0;
    none.textContent = "It has reported nothing about its training so far.";
    for (const curve of full) {
      if (!charts.has(curve.key)) charts.set(curve.key, panel(curve));
      const { value, chart } = charts.get(curve.key);
      const known = told[curve.key].filter((one) => one !== null);
      value.textContent = plain(known.at(-1), 4);
      chart.render();
    }
  }
  return { node, set };
}
