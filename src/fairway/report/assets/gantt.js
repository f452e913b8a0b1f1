// The Gantt: blocks on a canvas (there may be tens of thousands), axes and highlights in an SVG above it.

const LEVELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const cssColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// A block is five numbers: row, start, end, job, and the lane it takes in its row with the number of lanes there.
const BLOCK = 5;
const LANES_CODE = 1024;
const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const mix = (a, b, share) => a.map((v, i) => Math.round(v + (b[i] - v) * share));

// Seven hues (grey would look idle) times three shades: neighbours in the job list differ, and a reload shows the same colours.
function blockColours() {
  const ground = rgb(cssColour("--card"));
  const hues = Array.from({ length: 7 }, (_, i) => rgb(cssColour(`--s${i}`)));
  return [0, 0.25, 0.45].flatMap((shade) => hues.map((hue) => `rgb(${mix(hue, ground, shade).join(" ")})`));
}

class Gantt {
  constructor(host, options) {
    this.host = host;
    this.options = options;
    this.frame = { left: 92, right: 14, top: 4, bottom: 26 };
    this.window = null;
    redraws.push(() => this.render());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.render());
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
    this.host.replaceChildren();
    if (!gantt) { make("p", { class: "empty" }, this.host, "This result carries no Gantt."); return; }
    this.gantt = gantt;
    this.names = data.names[gantt.rows];
    const rows = this.names.length;
    this.rowHeight = rows <= 24 ? 18 : rows <= 64 ? 10 : rows <= 128 ? 6 : Math.max(1.5, 640 / rows);
    this.height = this.frame.top + this.frame.bottom + rows * this.rowHeight;
    const domain = this.window || this.options.domain();
    this.px = scale("time", domain, this.frame.left, this.width - this.frame.right);
    this.domain = domain;
    const canvas = make("canvas", { "aria-hidden": "true" }, this.host);
    this.svg = draw("svg", {
      viewBox: `0 0 ${this.width} ${this.height}`, role: "img", tabindex: 0,
      "aria-label": `${this.options.name()}: which job ran on which GPU over time. Plus and minus zoom, arrow keys move, Escape resets.`,
    }, this.host);
    this.paint(canvas);
    this.axes();
    this.overlay = draw("g", {}, this.svg);
    this.listen();
  }

  paint(canvas) {
    const { left, right, top, bottom } = this.frame;
    const ratio = devicePixelRatio || 1;
    const width = this.width - left - right;
    const height = this.height - top - bottom;
    canvas.width = Math.max(1, Math.round(width * ratio));
    canvas.height = Math.max(1, Math.round(height * ratio));
    Object.assign(canvas.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.fillStyle = cssColour("--heat-0");
    pen.fillRect(0, 0, width, height);
    if (this.gantt.kind === "raster") this.paintRaster(pen, height);
    else this.paintSegments(pen);
  }

  paintRaster(pen, height) {
    const { levels, t0_s: start, bin_s: size } = this.gantt;
    const bins = levels[0].length;
    const cells = new ImageData(bins, levels.length);
    const [cold, hot] = [rgb(cssColour("--heat-0")), rgb(cssColour("--heat-1"))];
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
    const { flat } = this.gantt;
    const colours = blockColours();
    const byUser = this.options.byUser() && this.gantt.users !== undefined;
    const users = byUser ? data.names[this.gantt.users] : [];
    const order = new Map([...new Set(users)].map((user, i) => [user, i]));
    for (let i = 0; i < flat.length; i += BLOCK) {
      const x = this.at(flat[i + 1]) - this.frame.left;
      const width = this.at(flat[i + 2]) - this.frame.left - x;
      if (x + width < 0 || x > this.width) continue;
      const job = flat[i + 3];
      pen.fillStyle = colours[(byUser ? order.get(users[job]) : job * 5) % colours.length];
      const { top, height } = this.band(i);
      pen.fillRect(x, top, Math.max(0.6, width > 4 ? width - 0.5 : width), height >= 5 ? height - 1 : Math.max(height, 0.6));
    }
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
    for (const { at, name } of ticksOfTime(...this.domain, Math.max(2, Math.floor(this.width / 90)))) {
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
  }

  listen() {
    let from = null;
    const spot = (event) => {
      const box = this.svg.getBoundingClientRect();
      const inside = (event.clientX - box.left) * (this.width / box.width);
      return { x: Math.max(this.frame.left, Math.min(this.width - this.frame.right, inside)), y: event.clientY - box.top };
    };
    this.svg.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse" && event.button === 0) from = spot(event).x; });
    this.svg.addEventListener("pointermove", (event) => {
      const { x, y } = spot(event);
      this.overlay.replaceChildren();
      if (from !== null && Math.abs(x - from) > 3) {
        const size = { x: Math.min(x, from), width: Math.abs(x - from), y: this.frame.top };
        draw("rect", { class: "range", ...size, height: this.height - this.frame.bottom - this.frame.top }, this.overlay);
      }
      this.point(x, y, event);
    });
    this.svg.addEventListener("pointerup", (event) => {
      const x = spot(event).x;
      const start = from;
      from = null;
      if (start !== null && Math.abs(x - start) > 5) this.zoom([Math.min(start, x), Math.max(start, x)].map((p) => this.px.invert(p)));
    });
    this.svg.addEventListener("pointerleave", () => { from = null; hideTip(); this.overlay.replaceChildren(); });
    this.svg.addEventListener("dblclick", () => this.zoom(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const [low, high] = this.domain;
    const span = high - low;
    const moves = {
      "+": [low + span / 4, high - span / 4], "=": [low + span / 4, high - span / 4], "-": [low - span / 2, high + span / 2],
      "ArrowLeft": [low - span / 4, high - span / 4], "ArrowRight": [low + span / 4, high + span / 4], "Escape": null,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [first, final] = this.options.domain();
    const wanted = moves[event.key];
    const whole = wanted === null || (wanted[0] <= first && wanted[1] >= final);
    this.zoom(whole ? null : [Math.max(first, wanted[0]), Math.min(final, wanted[1])]);
    this.svg.focus();
  }

  point(x, y, event) {
    const row = Math.floor((y - this.frame.top) / this.rowHeight);
    const time = this.px.invert(x);
    if (row < 0 || row >= this.names.length) { hideTip(); return; }
    const rows = [{ name: "at", value: duration(time) }];
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
    rows.unshift({ name: "ran here for", value: duration((flat[hit + 2] - flat[hit + 1]) * unit) });
    rows.unshift({ name: "GPUs", value: String(count) });
    const batch = this.batchAt(job, (time - this.gantt.t0_s) / unit);
    if (batch !== undefined) rows.splice(1, 0, { name: "batch", value: batch.toLocaleString("en") });
    if (users !== undefined) rows.unshift({ name: "user", value: data.names[users][job] });
    rows.push({ name: "on", value: this.names[row] });
    showTip(event.clientX, event.clientY, data.names[this.gantt.jobs][job], rows);
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
