// Line charts in SVG, with a cursor that follows pointer and arrow keys.

import { draw, make, onResize } from "./dom.js";
import { KINDS, scale } from "./scales.js";
import { colour, dash, hideTip, showTip } from "./tip.js";

/** The index of the last point at or before x, by bisection. */
export function indexBefore(xs, x) {
  let low = 0;
  let high = xs.length;
  while (low < high) { const mid = (low + high) >> 1; if (xs[mid] <= x) low = mid + 1; else high = mid; }
  return low - 1;
}

// Steps: each value holds until the next one.
function stepPath(series, px, py) {
  let path = "";
  series.x.forEach((x, i) => {
    const at = px(x).toFixed(1);
    path += i === 0 ? `M${at} ${py(series.start ?? series.y[0]).toFixed(1)}` : `H${at}`;
    path += `V${py(series.y[i]).toFixed(1)}`;
  });
  return series.until === undefined ? path : `${path}H${px(series.until).toFixed(1)}`;
}

// Straight lines between points, with a gap where a value is missing.
function straightPath(series, px, py) {
  let pen = "M";
  return series.x.map((x, i) => {
    if (series.y[i] === null) { pen = "M"; return ""; }
    const part = `${pen}${px(x).toFixed(1)} ${py(series.y[i]).toFixed(1)}`;
    pen = "L";
    return part;
  }).join("");
}

/**
 * A chart inside `host`. `spec()` says what it shows now: {name, series: [{index, label, x, y, start, until, straight}],
 * x: {kind, domain, label}, y: {…}, title(x), read(series, x), limit, mean, height, area, small: without names of axes, raised: the line that stands out}.
 */
export class LineChart {
  constructor(host, spec) {
    this.host = host;
    this.spec = spec;
    onResize(host, () => { if (host.clientWidth !== this.width) this.render(); });
    this.render();
  }

  render() {
    const now = this.spec();
    const width = this.host.clientWidth || 640;
    const height = now.height || 320;
    this.width = width;
    this.host.replaceChildren();
    if (!now.series.length) { make("p", { class: "empty" }, this.host, now.empty || "Nothing to show."); return; }
    const frame = { left: now.area || now.small ? 46 : 62, right: 14, top: 8, bottom: now.area || now.small ? 22 : 42 };
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0, "aria-label": now.name }, this.host);
    const px = scale(now.x.kind, now.x.domain, frame.left, width - frame.right);
    const py = scale(now.y.kind, now.y.domain, height - frame.bottom, frame.top);
    this.axes(svg, now, frame, width, height, px, py);
    if (now.limit) this.limit(svg, now, frame, width, height, px);
    for (const series of now.series) this.series(svg, now, series, px, py, height - frame.bottom);
    this.cursor(svg, now, frame, width, height, px);
  }

  axes(svg, now, frame, width, height, px, py) {
    const floor = height - frame.bottom;
    for (const { at, name } of KINDS[now.y.kind].ticks(...now.y.domain, Math.max(2, Math.floor(height / (now.small ? 38 : 55))))) {
      draw("line", { class: "grid", x1: frame.left, x2: width - frame.right, y1: py(at), y2: py(at) }, svg);
      draw("text", { x: frame.left - 8, y: py(at) + 4, "text-anchor": "end" }, svg, name);
    }
    for (const { at, name } of KINDS[now.x.kind].ticks(...now.x.domain, Math.max(2, Math.floor(width / 78)))) {
      const x = px(at);
      draw("line", { class: "grid", x1: x, x2: x, y1: frame.top, y2: floor }, svg);
      draw("text", { x, y: floor + 17, "text-anchor": x > width - 30 ? "end" : "middle" }, svg, name);
    }
    draw("line", { class: "axis", x1: frame.left, x2: width - frame.right, y1: floor, y2: floor }, svg);
    if (now.area || now.small) return;
    draw("text", { x: (frame.left + width - frame.right) / 2, y: height - 4, "text-anchor": "middle" }, svg, now.x.label);
    const middle = (frame.top + floor) / 2;
    draw("text", { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, svg, now.y.label);
  }

  limit(svg, now, frame, width, height, px) {
    const x = px(now.limit.at);
    if (x < frame.left || x > width - frame.right) return;
    const floor = height - frame.bottom;
    draw("rect", { class: "beyond", x, y: frame.top, width: width - frame.right - x, height: floor - frame.top }, svg);
    draw("line", { class: "limit", x1: x, x2: x, y1: frame.top, y2: floor }, svg);
    const label = draw("text", { class: "limit", x: x + 6, y: now.limit.low ? floor - 8 : frame.top + 13 }, svg, now.limit.name);
    if (x + 6 + label.getComputedTextLength() <= width - frame.right) return;
    label.setAttribute("x", x - 6);
    label.setAttribute("text-anchor", "end");
  }

  series(svg, now, series, px, py, floor) {
    const path = (series.straight ? straightPath : stepPath)(series, px, py);
    if (now.area) {
      draw("path", { class: `area ${colour(series.index)}`, d: `${path}V${floor}H${px(series.x[0])}Z` }, svg);
    }
    const some = now.raised !== null && now.raised !== undefined && !now.area;
    const other = some && now.raised !== series.index;
    const raised = some && !other ? " raised" : "";
    draw("path", { class: `line ${colour(series.index)}${dash(series.index)}${other ? " faded" : raised}`, d: path }, svg);
    if (now.mean !== undefined && now.mean !== null) {
      const y = py(now.mean);
      draw("line", { class: `mean ${colour(series.index)}`, x1: px(now.x.domain[0]), x2: px(now.x.domain[1]), y1: y, y2: y }, svg);
    }
  }

  cursor(svg, now, frame, width, height, px) {
    const line = draw("line", { class: "cursor", y1: frame.top, y2: height - frame.bottom, visibility: "hidden" }, svg);
    let at = (frame.left + width - frame.right) / 2;
    const show = (pixel) => {
      at = Math.max(frame.left, Math.min(width - frame.right, pixel));
      const box = svg.getBoundingClientRect();
      const x = px.invert(at);
      line.setAttribute("x1", at);
      line.setAttribute("x2", at);
      line.setAttribute("visibility", "visible");
      const rows = now.series.map((series) => ({ series, y: now.read(series, x) })).filter(({ y }) => y !== null);
      rows.sort((a, b) => b.y - a.y);
      const said = rows.map(({ series, y }) => ({ name: series.label, index: series.index, value: KINDS[now.y.kind].say(y) }));
      showTip(box.left + (at * box.width) / width, box.top + box.height / 3, now.title(KINDS[now.x.kind].say(x)), said);
    };
    const hide = () => { line.setAttribute("visibility", "hidden"); hideTip(); };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      show(((event.clientX - box.left) * width) / box.width);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -0.02, ArrowRight: 0.02 }[event.key];
      if (step) { event.preventDefault(); show(at + step * width); } else if (event.key === "Escape") hide();
    });
  }
}
