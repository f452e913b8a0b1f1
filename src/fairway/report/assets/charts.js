"use strict";
// Line charts in SVG: scales with ticks a person reads, a cursor that follows pointer and arrow keys, one shared legend.

window.addEventListener("error", (event) => { document.body.dataset.error = event.message; });

const data = JSON.parse(document.getElementById("data").textContent);
const policies = data.policies;
// Of many policies the best are shown; `all` after a click on "Show all".
const rest = policies.map((_, index) => index).filter((index) => index >= data.shown);
const view = { hidden: new Set(rest), raised: null, all: rest.length === 0 };
const redraws = [];
const redrawAll = () => redraws.forEach((redraw) => redraw());

const make = (tag, attributes = {}, parent = null, text = null, space = null) => {
  const node = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  if (parent) parent.append(node);
  return node;
};
const draw = (tag, attributes, parent, text = null) => make(tag, attributes, parent, text, "http://www.w3.org/2000/svg");
const colour = (index) => `s${index % 8}`;
const dash = (index) => (index < 8 ? "" : ` dash${Math.floor(index / 8) % 3}`);
const swatchClass = (index) => `swatch ${colour(index)}${dash(index)}`;
const last = (list) => list[list.length - 1];

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const plain = (value, digits = 3) => Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 6 });
const percent = (share) => {
  if (share > 0 && share < 0.01) return `${plain(share * 100, 2)} %`;
  return `${(share * 100).toFixed(share > 0.99 && share < 1 ? 2 : 1).replace(/\.0+$/, "")} %`;
};
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${plain(seconds, 2)} s`;
  const at = UNITS.findIndex(([size]) => seconds >= size);
  const [size, unit] = UNITS[at];
  const [smaller, smallerUnit] = UNITS[at + 1];
  let whole = Math.floor(seconds / size);
  let rest = Math.round((seconds - whole * size) / smaller);
  if (rest * smaller >= size) { whole += 1; rest = 0; }
  return rest && whole < 100 ? `${whole} ${unit} ${rest} ${smallerUnit}` : `${whole} ${unit}`;
}

// One number and one unit, for tables with many columns.
const brief = (seconds) => {
  if (seconds === null || seconds === undefined) return "–";
  const [size, unit] = UNITS.find(([least]) => seconds >= least) || [1, "s"];
  return `${plain(seconds / size, 3)} ${unit}`;
};

const TIME_STEPS = [
  1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200,
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].map((days) => days * 86400),
];
const TIME_MARKS = [
  0.001, 0.01, 0.1, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000, ...[1, 3, 10, 30, 100, 300, 1000, 10000].map((d) => d * 86400),
];
const tickName = (seconds, step) => {
  if (seconds === 0) return "0";
  const [size, unit] = UNITS.find(([size]) => step >= size) || [1, "s"];
  return `${plain(seconds / size, 6)} ${unit}`;
};
function ticksOfTime(low, high, room) {
  const least = high - low >= 4 * 86400 ? 86400 : 0;
  const step = TIME_STEPS.find((size) => size >= least && (high - low) / size <= room) || (high - low) / room;
  const ticks = [];
  for (let t = Math.ceil(low / step) * step; t <= high * 1.0000001; t += step) ticks.push({ at: t, name: tickName(t, step) });
  return ticks;
}
function ticksOfCount(low, high, room) {
  const rough = (high - low) / room;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((size) => size >= rough);
  const ticks = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step / 1e6; v += step) ticks.push({ at: v, name: plain(v, 6) });
  return ticks;
}
// The densest set of marks that leaves room for its names.
function thinned(marks, low, high, room, name) {
  const inside = marks.filter((mark) => mark >= low * 0.999 && mark <= high * 1.001);
  const every = Math.max(1, Math.ceil(inside.length / room));
  return inside.filter((_, i) => (inside.length - 1 - i) % every === 0).map((at) => ({ at, name: name(at) }));
}
function ticksOfRatio(low, high, room) {
  const marks = [];
  for (let power = -4; power < 8; power += 1) for (const k of [1, 2, 5]) marks.push(k * 10 ** power);
  const decades = marks.filter((_, i) => i % 3 === 0);
  const crowded = marks.filter((mark) => mark >= low && mark <= high).length > room * 1.7;
  return thinned(crowded ? decades : marks, low, high, room * 1.7, (v) => plain(v, 3));
}
const KINDS = {
  "time": { ticks: ticksOfTime, say: duration },
  "log-time": { log: true, ticks: (l, h, room) => thinned(TIME_MARKS, l, h, room, (t) => tickName(t, t)), say: duration },
  "log-ratio": { log: true, ticks: ticksOfRatio, say: (v) => plain(v) },
  "share": { ticks: () => [0, 0.25, 0.5, 0.75, 1].map((at) => ({ at, name: `${at * 100} %` })), say: percent },
  "log-share": {
    log: true, say: percent,
    ticks: (l, h, room) => thinned([1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1], l, h, room, (v) => `${plain(v * 100, 2)} %`),
  },
  "count": { ticks: ticksOfCount, say: (v) => plain(v) },
};
function scale(kind, [low, high], from, to) {
  const bend = KINDS[kind].log ? Math.log : (v) => v;
  const a = bend(low);
  const b = bend(high) - a || 1;
  const place = (value) => from + ((bend(value) - a) / b) * (to - from);
  place.invert = (pixel) => {
    const bent = a + ((pixel - from) / (to - from)) * b;
    return KINDS[kind].log ? Math.exp(bent) : bent;
  };
  return place;
}

// Redrawing inside the observer's own turn would make it report a loop, so it waits for the next frame.
const onResize = (host, redraw) => new ResizeObserver(() => requestAnimationFrame(redraw)).observe(host);

const tip = document.getElementById("tip");
function showTip(x, y, title, rows) {
  tip.replaceChildren();
  make("b", {}, tip, title);
  for (const { name, value, index } of rows.slice(0, 14)) {
    const row = make("div", {}, tip);
    if (index !== undefined) make("span", { class: swatchClass(index) }, row);
    make("span", {}, row, name);
    make("span", {}, row, value);
  }
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, x + 16 + box.width > innerWidth ? x - box.width - 16 : x + 16)}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - box.height - 8))}px`;
}
const hideTip = () => { tip.hidden = true; };

// The last point at or before x, by bisection.
function indexBefore(xs, x) {
  let low = 0;
  let high = xs.length;
  while (low < high) { const mid = (low + high) >> 1; if (xs[mid] <= x) low = mid + 1; else high = mid; }
  return low - 1;
}

function pathOf(series, px, py) {
  let path = "";
  series.x.forEach((x, i) => {
    const at = px(x).toFixed(1);
    path += i === 0 ? `M${at} ${py(series.start ?? series.y[0]).toFixed(1)}` : `H${at}`;
    path += `V${py(series.y[i]).toFixed(1)}`;
  });
  return series.until === undefined ? path : `${path}H${px(series.until).toFixed(1)}`;
}

// spec(): {series: [{index, label, x, y, start, until}], x: {kind, domain, label}, y: {...}, limit, height, area, title(x)}
class LineChart {
  constructor(host, spec) {
    this.host = host;
    this.spec = spec;
    redraws.push(() => this.render());
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
    const frame = { left: now.area ? 46 : 62, right: 14, top: 8, bottom: now.area ? 22 : 42 };
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
    for (const { at, name } of KINDS[now.y.kind].ticks(...now.y.domain, Math.max(2, Math.floor(height / 55)))) {
      draw("line", { class: "grid", x1: frame.left, x2: width - frame.right, y1: py(at), y2: py(at) }, svg);
      draw("text", { x: frame.left - 8, y: py(at) + 4, "text-anchor": "end" }, svg, name);
    }
    for (const { at, name } of KINDS[now.x.kind].ticks(...now.x.domain, Math.max(2, Math.floor(width / 78)))) {
      const x = px(at);
      draw("line", { class: "grid", x1: x, x2: x, y1: frame.top, y2: floor }, svg);
      draw("text", { x, y: floor + 17, "text-anchor": x > width - 30 ? "end" : "middle" }, svg, name);
    }
    draw("line", { class: "axis", x1: frame.left, x2: width - frame.right, y1: floor, y2: floor }, svg);
    if (now.area) return;
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
    const path = pathOf(series, px, py);
    if (now.area) {
      draw("path", { class: `area ${colour(series.index)}`, d: `${path}V${floor}H${px(series.x[0])}Z` }, svg);
    }
    const other = view.raised !== null && view.raised !== series.index && !now.area;
    const raised = view.raised === series.index && !now.area ? " raised" : "";
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
