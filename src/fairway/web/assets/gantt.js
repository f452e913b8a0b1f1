// The Gantt: blocks on a canvas (there may be tens of thousands), axes and highlights in an SVG above it.

import { draw, make, onResize } from "./dom.js";
import { duration, percent } from "./numbers.js";
import { KINDS, scale } from "./scales.js";
import { hideTip, showTip } from "./tip.js";

const LEVELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/** A block is five numbers: row, start, end, job, and the lane it takes in its row with the number of lanes there. */
export const BLOCK = 5;
/** The lane and the number of lanes are one number: lane + LANES_CODE * (lanes - 1). */
export const LANES_CODE = 1024;
const LEAST_SPAN_S = 10;
const mix = (a, b, share) => a.map((v, i) => Math.round(v + (b[i] - v) * share));

// Colours as three numbers. A browser resolves them for an element, not for a property's text.
function coloursOf(names) {
  const probe = make("span", { hidden: "" }, document.body);
  const found = names.map((name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  });
  probe.remove();
  return found;
}

/** Seven hues (grey would look idle) times three shades: neighbours in the job list differ, and a reload shows the same. */
export function blockColours() {
  const [ground, ...hues] = coloursOf(["--card", ...Array.from({ length: 7 }, (_, i) => `--s${i}`)]);
  return [0, 0.25, 0.45].flatMap((shade) => hues.map((hue) => `rgb(${mix(hue, ground, shade).join(" ")})`));
}

/**
 * Who ran where, over time. Options: `current()` is the data, {kind: "segments", rows, jobs, users, t0_s, unit_s, flat} or
 * {kind: "raster", rows, levels, t0_s, bin_s}; `pale` is the first number in `flat` that belongs to a forecast, `now_s` gets a line,
 * `hues` are the jobs' colours if they are not to follow from their order.
 * `domain()` is the whole range, `name()` the name for screen readers, `byUser()` how to colour, `onZoom(zoomed)` is told.
 * `axis` is "time" or "clock". With `pan` a drag moves, the wheel zooms and `onPick(job)` is told; else a drag zooms into its range.
 */
export class Gantt {
  constructor(host, options) {
    this.host = host;
    this.options = options;
    this.axis = options.axis || "time";
    this.frame = { left: 92, right: 14, top: options.axis === "clock" ? 20 : 4, bottom: 26 };
    this.window = null;
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.svg = draw("svg", { role: "img", tabindex: 0 });
    this.listen();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.render(), { signal: options.signal });
    onResize(host, () => { if (host.clientWidth !== this.width) this.render(); });
  }

  zoom(range) {
    this.window = range;
    this.options.onZoom(range !== null);
    this.render();
  }

  render() {
    const gantt = this.options.current();
    this.width = this.host.clientWidth || 640;
    if (!gantt) {
      this.host.replaceChildren();
      make("p", { class: "empty" }, this.host, "This result carries no Gantt.");
      return;
    }
    if (this.svg.parentNode !== this.host) this.host.replaceChildren(this.canvas, this.svg);
    this.gantt = gantt;
    this.names = gantt.rows;
    const rows = this.names.length;
    this.rowHeight = rows <= 24 ? 18 : rows <= 64 ? 10 : rows <= 128 ? 6 : Math.max(1.5, 640 / rows);
    this.height = this.frame.top + this.frame.bottom + rows * this.rowHeight;
    this.domain = this.window || this.options.domain();
    this.px = scale("time", this.domain, this.frame.left, this.width - this.frame.right);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.setAttribute("aria-label", `${this.options.name()}: which job ran on which GPU over time. Plus and minus zoom, arrow keys move, Escape resets.`);
    this.svg.replaceChildren();
    this.paint();
    this.axes();
    this.overlay = draw("g", {}, this.svg);
  }

  paint() {
    const { canvas } = this;
    const { left, right, top, bottom } = this.frame;
    const ratio = devicePixelRatio || 1;
    const width = this.width - left - right;
    const height = this.height - top - bottom;
    canvas.width = Math.max(1, Math.round(width * ratio));
    canvas.height = Math.max(1, Math.round(height * ratio));
    Object.assign(canvas.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.fillStyle = `rgb(${coloursOf(["--heat-0"])[0].join(" ")})`;
    pen.fillRect(0, 0, width, height);
    if (this.gantt.kind === "raster") this.paintRaster(pen, height);
    else this.paintSegments(pen);
  }

  paintRaster(pen, height) {
    const { levels, t0_s: start, bin_s: size } = this.gantt;
    const bins = levels[0].length;
    const cells = new ImageData(bins, levels.length);
    const [cold, hot] = coloursOf(["--heat-0", "--heat-1"]);
    const shades = Array.from(LEVELS, (_, i) => mix(cold, hot, i / (LEVELS.length - 1)));
    levels.forEach((row, r) => {
      for (let c = 0; c < bins; c += 1) cells.data.set([...shades[LEVELS.indexOf(row[c])], 255], (r * bins + c) * 4);
    });
    const sheet = document.createElement("canvas");
    sheet.width = bins;
    sheet.height = levels.length;
    sheet.getContext("2d").putImageData(cells, 0, 0);
    pen.imageSmoothingEnabled = false;
    const x0 = this.px(start) - this.frame.left;
    pen.drawImage(sheet, x0, 0, this.px(start + bins * size) - this.frame.left - x0, height);
  }

  paintSegments(pen) {
    const { flat, hues } = this.gantt;
    const colours = blockColours();
    const byUser = this.options.byUser() && this.gantt.users !== undefined;
    const users = byUser ? this.gantt.users : [];
    const order = new Map([...new Set(users)].map((user, i) => [user, i]));
    for (let i = 0; i < flat.length; i += BLOCK) {
      const x = this.at(flat[i + 1]) - this.frame.left;
      const width = this.at(flat[i + 2]) - this.frame.left - x;
      if (x + width < 0 || x > this.width) continue;
      const job = flat[i + 3];
      pen.globalAlpha = i < (this.gantt.pale ?? Infinity) ? 1 : 0.34;
      const hue = hues ? hues[job] : byUser ? order.get(users[job]) : job * 5;
      pen.fillStyle = colours[hue % colours.length];
      const { top, height } = this.band(i);
      pen.fillRect(x, top, Math.max(0.6, width > 4 ? width - 0.5 : width), height >= 5 ? height - 1 : Math.max(height, 0.6));
    }
    pen.globalAlpha = 1;
  }

  // Where a block lies from top to bottom: jobs that share a GPU divide its row.
  band(i) {
    const code = this.gantt.flat[i + 4];
    const height = this.rowHeight / (Math.floor(code / LANES_CODE) + 1);
    return { top: this.gantt.flat[i] * this.rowHeight + (code % LANES_CODE) * height, height };
  }

  at(units) { return this.px(this.gantt.t0_s + units * this.gantt.unit_s); }

  axes() {
    const { left, right, top, bottom } = this.frame;
    const floor = this.height - bottom;
    for (const { at, name } of KINDS[this.axis].ticks(...this.domain, Math.max(2, Math.floor(this.width / 90)))) {
      const x = this.px(at);
      draw("line", { class: "axis", x1: x, x2: x, y1: floor, y2: floor + 5 }, this.svg);
      draw("text", { x, y: floor + 19, "text-anchor": x > this.width - 30 ? "end" : "middle" }, this.svg, name);
    }
    draw("line", { class: "axis", x1: left, x2: this.width - right, y1: floor, y2: floor }, this.svg);
    const nodes = this.names.map((name) => (this.gantt.kind === "segments" ? name.replace(/\/[^/]*$/, "") : name));
    let free = -Infinity;
    nodes.forEach((node, row) => {
      if (row > 0 && nodes[row - 1] === node) return;
      const y = top + row * this.rowHeight;
      if (row > 0 && this.gantt.kind === "segments" && this.rowHeight >= 3) {
        draw("line", { class: "axis", x1: left - 6, x2: left, y1: y, y2: y }, this.svg);
      }
      if (y < free) return;
      const label = draw("text", { x: left - 9, y: y + Math.min(12, this.rowHeight + 7), "text-anchor": "end" }, this.svg);
      label.textContent = node.length > 13 ? `${node.slice(0, 12)}…` : node;
      free = y + 14;
    });
    const { now_s: now } = this.gantt;
    if (now === undefined || now < this.domain[0] || now > this.domain[1]) return;
    draw("line", { class: "now", x1: this.px(now), x2: this.px(now), y1: top - 4, y2: floor }, this.svg);
    draw("text", { class: "now", x: this.px(now), y: top - 6, "text-anchor": "middle" }, this.svg, "now");
  }

  spot(event) {
    const box = this.svg.getBoundingClientRect();
    const inside = (event.clientX - box.left) * (this.width / box.width);
    return { x: Math.max(this.frame.left, Math.min(this.width - this.frame.right, inside)), y: event.clientY - box.top };
  }

  listen() {
    const { svg } = this;
    let from = null;
    svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || (event.pointerType !== "mouse" && !this.options.pan)) return;
      from = { x: this.spot(event).x, domain: this.domain, moved: false };
      if (this.options.pan) svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => {
      const { x, y } = this.spot(event);
      if (from !== null && Math.abs(x - from.x) > 3) from.moved = true;
      this.overlay.replaceChildren();
      if (from !== null && from.moved) {
        if (this.options.pan) { this.panFrom(from, x); return; }
        const size = { x: Math.min(x, from.x), width: Math.abs(x - from.x), y: this.frame.top };
        draw("rect", { class: "range", ...size, height: this.height - this.frame.bottom - this.frame.top }, this.overlay);
      }
      this.point(x, y, event);
    });
    svg.addEventListener("pointerup", (event) => {
      const { x, y } = this.spot(event);
      const start = from;
      from = null;
      if (start === null) return;
      if (this.options.pan) { if (!start.moved) this.pick(x, y); return; }
      if (Math.abs(x - start.x) > 5) this.zoom([Math.min(start.x, x), Math.max(start.x, x)].map((p) => this.px.invert(p)));
    });
    svg.addEventListener("pointerleave", () => { from = null; hideTip(); this.overlay.replaceChildren(); });
    svg.addEventListener("dblclick", () => this.zoom(null));
    svg.addEventListener("keydown", (event) => this.key(event));
    if (this.options.pan) svg.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  // The wheel scrolls the page until somebody has clicked into the chart, or holds Ctrl.
  wheel(event) {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!sideways && !event.ctrlKey && !event.metaKey && document.activeElement !== this.svg) return;
    event.preventDefault();
    hideTip();
    const [low, high] = this.domain;
    const by = ((sideways ? event.deltaX : event.deltaY) * (event.deltaMode === 1 ? 16 : 1)) / 500;
    if (sideways) { this.show([low + by * (high - low), high + by * (high - low)]); return; }
    const at = this.px.invert(this.spot(event).x);
    const factor = Math.exp(Math.max(-1, Math.min(1, by)));
    this.show([at - (at - low) * factor, at + (high - at) * factor]);
  }

  panFrom(from, x) {
    hideTip();
    const [low, high] = from.domain;
    const by = ((from.x - x) / (this.width - this.frame.left - this.frame.right)) * (high - low);
    this.show([low + by, high + by]);
  }

  // A range moved into the whole one, or all of it where it would show nothing less.
  show([low, high]) {
    const [first, final] = this.options.domain();
    const span = Math.min(Math.max(high - low, Math.min(LEAST_SPAN_S, final - first)), final - first);
    if (span >= final - first) { this.zoom(null); return; }
    const start = Math.max(first, Math.min(low, final - span));
    this.zoom([start, start + span]);
  }

  pick(x, y) {
    const hit = this.gantt.kind === "segments" ? this.segmentAt(y - this.frame.top, (this.px.invert(x) - this.gantt.t0_s) / this.gantt.unit_s) : -1;
    if (hit !== -1 && this.options.onPick) this.options.onPick(this.gantt.flat[hit + 3]);
  }

  /** Shows half of the range, or twice as much. */
  step(closer) {
    const [low, high] = this.domain;
    const by = (high - low) * (closer ? 0.25 : -0.5);
    this.show([low + by, high - by]);
  }

  key(event) {
    const [low, high] = this.domain;
    const span = high - low;
    if (["+", "=", "-"].includes(event.key)) { event.preventDefault(); this.step(event.key !== "-"); return; }
    const moves = {
      "ArrowLeft": [low - span / 4, high - span / 4], "ArrowRight": [low + span / 4, high + span / 4], "Escape": this.options.domain(),
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.show(moves[event.key]);
  }

  point(x, y, event) {
    const row = Math.floor((y - this.frame.top) / this.rowHeight);
    const time = this.px.invert(x);
    if (row < 0 || row >= this.names.length) { hideTip(); return; }
    const rows = [{ name: "at", value: KINDS[this.axis].say(time) }];
    if (this.gantt.kind === "raster") {
      const cell = this.gantt.levels[row][Math.floor((time - this.gantt.t0_s) / this.gantt.bin_s)];
      rows.unshift({ name: "busy", value: cell === undefined ? "–" : percent(LEVELS.indexOf(cell) / (LEVELS.length - 1)) });
      showTip(event.clientX, event.clientY, this.names[row], rows);
      return;
    }
    const hit = this.segmentAt(y - this.frame.top, (time - this.gantt.t0_s) / this.gantt.unit_s);
    if (hit === -1) { showTip(event.clientX, event.clientY, `${this.names[row]} idle`, rows); return; }
    const { flat, unit_s: unit, users } = this.gantt;
    const job = flat[hit + 3];
    const count = this.outline(job, flat[hit + 1]);
    const ahead = hit >= (this.gantt.pale ?? Infinity);
    rows.unshift({ name: ahead ? "would run here for" : "ran here for", value: duration((flat[hit + 2] - flat[hit + 1]) * unit) });
    rows.unshift({ name: "GPUs", value: String(count) });
    const batch = this.batchAt(job, (time - this.gantt.t0_s) / unit);
    if (batch !== undefined) rows.splice(1, 0, { name: "batch", value: batch.toLocaleString("en") });
    if (users !== undefined) rows.unshift({ name: "user", value: users[job] });
    rows.push({ name: "on", value: this.names[row] });
    showTip(event.clientX, event.clientY, this.gantt.jobs[job], rows);
  }

  // The batch size that the policy had chosen for a job by then.
  batchAt(job, units) {
    const changes = (this.gantt.batches || {})[job] || [];
    let batch;
    for (let i = 0; i < changes.length && changes[i] <= units; i += 2) batch = changes[i + 1];
    return batch;
  }

  segmentAt(y, units) {
    const { flat } = this.gantt;
    const slack = (this.domain[1] - this.domain[0]) / this.width / this.gantt.unit_s;
    let near = -1;
    for (let i = 0; i < flat.length; i += BLOCK) {
      if (flat[i + 1] > units + slack || flat[i + 2] < units - slack) continue;
      const { top, height } = this.band(i);
      if (y < top || y >= top + height) continue;
      if (flat[i + 1] <= units && flat[i + 2] >= units) return i;
      if (near === -1) near = i;
    }
    return near;
  }

  // Outlines every block of the job and counts the GPUs it held from that start on.
  outline(job, start) {
    const { flat } = this.gantt;
    let count = 0;
    for (let i = 0; i < flat.length; i += BLOCK) {
      if (flat[i + 3] !== job) continue;
      if (flat[i + 1] === start) count += 1;
      const x = Math.max(this.frame.left, this.at(flat[i + 1]));
      const width = Math.max(1, Math.min(this.width - this.frame.right, this.at(flat[i + 2])) - x);
      if (this.at(flat[i + 2]) < this.frame.left || x > this.width - this.frame.right) continue;
      const { top, height } = this.band(i);
      draw("rect", { class: "same", x, y: this.frame.top + top, width, height: height - 0.5 }, this.overlay);
    }
    return count;
  }
}
