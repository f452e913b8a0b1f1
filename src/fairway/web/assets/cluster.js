// The cluster: who is where now, who was where, and who is forecast to be.

import { attempt, get } from "./api.js";
import { hear } from "./bus.js";
import { when } from "./clock.js";
import { h, say } from "./dom.js";
import { finishOf } from "./expected.js";
import { BLOCK, Gantt } from "./gantt.js";
import { nodeCards } from "./node-cards.js";
import { duration } from "./numbers.js";
import { forecastOf, jobOf, known, now_s } from "./store.js";
import { card, jobLink, sortedTable } from "./table.js";
import { ganttData, heldShares } from "./timeline-data.js";

const HOUR_S = 3600;
const LEAST_S = 300;
const RANGES = [[1, "1 h"], [6, "6 h"], [24, "1 d"], [168, "7 d"]];
const OFTEN_MS = 2000;
const LOADS_MS = 5000;
const SELDOM_MS = 4000;
const kept = { hours: 6, byUser: false };

function choice(name, options, current, picked) {
  const buttons = options.map(([value, label]) => h("button", { "type": "button", "data-value": value, "aria-pressed": value === current, "onclick": () => {
    buttons.forEach((one, at) => one.setAttribute("aria-pressed", options[at][0] === value));
    picked(value);
  } }, label));
  return h("div", { class: "choice", role: "group", "aria-label": name }, buttons);
}

/** Calls `act` at most once per pause, and not while nobody looks. */
function spaced(act, pause_ms, signal) {
  let [last, due] = [0, 0];
  return () => {
    if (due || document.hidden || signal.aborted) return;
    due = setTimeout(() => { due = 0; last = Date.now(); if (!signal.aborted) act(); }, Math.max(0, last + pause_ms - Date.now()));
  };
}

class ClusterView {
  constructor(root, signal, ready) {
    Object.assign(this, { root, signal, ready, nodes: null, timeline: null, gantt: null, list: null });
    this.gist = h("p", { class: "soft" });
    this.cards = h("div", { class: "nodes" });
    this.note = h("p", { class: "soft hint" });
    this.picture = h("div", { class: "gantt" });
    this.reset = h("button", { type: "button", class: "plain", hidden: true, onclick: () => this.chart.zoom(null) }, "Show all");
    this.table = h("details", {}, h("summary", {}, "As a table"), h("div", {}));
    const zoom = (label, name, closer) => h("button", { "type": "button", "class": "plain", "aria-label": name, "title": name, "onclick": () => this.chart.step(closer) }, label);
    const aside = h("span", { class: "aside" }, this.reset, zoom("−", "Zoom out", false), zoom("+", "Zoom in", true),
      choice("Colours", [[false, "by job"], [true, "by user"]], kept.byUser, (value) => { kept.byUser = value; this.draw(); this.fillNodes(); }),
      choice("How far back and ahead", RANGES, kept.hours, (value) => { kept.hours = value; this.chart.window = null; this.reset.hidden = true; this.loadTimeline(); }));
    root.replaceChildren(h("header", { class: "view-head" }, h("h1", {}, "Cluster"), this.gist), this.cards, card("Timeline", aside, this.note, this.picture, this.table));
    this.chart = new Gantt(this.picture, {
      current: () => this.gantt, domain: () => this.domain(), byUser: () => kept.byUser, name: () => "Timeline", axis: "clock", pan: true, signal,
      onZoom: (zoomed) => { this.reset.hidden = !zoomed; }, onPick: (job) => { location.hash = `#/job/${encodeURIComponent(this.gantt.ids[job])}`; },
    });
    this.table.addEventListener("toggle", () => this.fillTable());
  }

  /** As far back and ahead as was asked for, but not much further than there is something. */
  domain() {
    const { now_s: now, t0_s: start, flat } = this.gantt;
    const far = kept.hours * HOUR_S;
    let [first, final] = [now - LEAST_S, now + LEAST_S];
    for (let i = 0; i < flat.length; i += BLOCK) {
      first = Math.min(first, start + flat[i + 1]);
      final = Math.max(final, start + flat[i + 2]);
    }
    const room = (final - first) / 50;
    return [Math.max(now - far, first - room), Math.min(now + far, final + room)];
  }

  get measured() { return this.nodes?.some(({ gpus }) => gpus.some(({ utilisation, memory_used_bytes: used }) => (utilisation ?? used ?? null) !== null)); }

  async loadNodes() {
    const told = await attempt(() => get("/v1/nodes", this.signal), (error) => say(this.gist, error.message));
    if (!told) return;
    this.nodes = told.nodes;
    this.fillNodes();
    this.ready();
  }

  async loadTimeline() {
    const since = now_s() - kept.hours * HOUR_S;
    const told = await attempt(() => get(`/v1/timeline?since=${since.toFixed(0)}`, this.signal), (error) => say(this.note, error.message));
    if (!told) return;
    this.timeline = told;
    this.draw();
    this.fillNodes();
  }

  draw() {
    if (!this.timeline) return;
    const { forecast } = known();
    const now = now_s();
    this.gantt = ganttData(this.timeline, forecast, now, jobOf, kept.byUser);
    say(this.note, `Up to now and beyond: what is forecast is paler${forecast ? "" : " (the forecast is being made)"}. Drag moves, the wheel zooms after a click or with Ctrl, double click shows all; a click on a block opens its job.`
      + (this.timeline.least_s > 0 ? ` Spans shorter than ${duration(this.timeline.least_s)} are left out.` : "") + (forecast?.cut ? ` Forecast: ${forecast.cut}.` : ""));
    this.chart.render();
    this.fillTable();
  }

  fillNodes() {
    if (!this.nodes || (this.cards.contains(document.activeElement) && document.activeElement !== document.body)) return;
    const now = now_s();
    const { of: held, lasted_s: lasted } = this.timeline ? heldShares(this.timeline, now) : { of: new Map() };
    this.cards.replaceChildren(...nodeCards(this.nodes, held, kept.byUser));
    const gpus = this.nodes.flatMap((node) => node.gpus);
    const uses = Object.entries(Object.groupBy(gpus, ({ use }) => use)).map(([use, list]) => `${list.length} ${use}`);
    const share = this.timeline?.spans.length ? ` · held ${Math.round((100 * [...held.values()].reduce((sum, one) => sum + one, 0)) / held.size)} % of the last ${duration(lasted)}` : "";
    say(this.gist, `${gpus.length} GPUs on ${this.nodes.length} ${this.nodes.length === 1 ? "node" : "nodes"}: ${uses.join(", ")}${share}`);
  }

  /** The same as the picture, in words: each GPU, who has it, until when, and who is forecast to be next. */
  fillTable() {
    if (!this.table.open || !this.gantt) return;
    const now = now_s();
    const next = new Map();
    for (const [gpu, id, from] of known().forecast?.spans || []) if (from > now + 1 && !(next.get(gpu)?.from <= from)) next.set(gpu, { id, from });
    const present = new Map(this.timeline.gpus.map(({ gpu }) => [gpu, []]));
    for (const [gpu, id, from, to] of this.timeline.spans) if (to === null) present.get(gpu)?.push({ id, from });
    const rows = this.timeline.gpus.map(({ gpu, type }, at) => ({ gpu: this.gantt.rows[at], type, next: next.get(gpu), own: present.get(gpu) }));
    if (this.list) { this.list.update(rows); return; }
    const all = (row, what) => row.own.map((one) => h("div", {}, what(one)));
    const columns = [
      { label: "GPU", value: (row) => row.gpu, cell: (row) => row.gpu },
      { label: "Type", value: (row) => row.type, cell: (row) => row.type },
      { label: "Job", value: (row) => row.own[0]?.id, cell: (row) => (row.own.length ? all(row, ({ id }) => [jobLink(id), ` ${jobOf(id)?.name ?? ""}`]) : "idle") },
      { label: "User", value: (row) => jobOf(row.own[0]?.id)?.user, cell: (row) => all(row, ({ id }) => jobOf(id)?.user ?? "") },
      { label: "Since", value: (row) => row.own[0]?.from, cell: (row) => all(row, ({ from }) => when(from, now_s())) },
      { label: "Ends", value: (row) => forecastOf(row.own[0]?.id)?.finish_s, cell: (row) => all(row, ({ id }) => finishOf(forecastOf(id), now_s())?.full ?? "–") },
      { label: "Next", value: (row) => row.next?.from, cell: (row) => (row.next ? [jobLink(row.next.id), ` at ${when(row.next.from, now_s())}`] : "–") },
    ];
    this.list = sortedTable({ name: "Who has which GPU", columns, rows });
    this.table.lastElementChild.replaceChildren(this.list);
  }
}

/** Shows the cluster. */
export function show({ root, signal, ready }) {
  const view = new ClusterView(root, signal, ready);
  const nodes = spaced(() => view.loadNodes(), OFTEN_MS, signal);
  const timeline = spaced(() => view.loadTimeline(), SELDOM_MS, signal);
  const both = () => { nodes(); timeline(); };
  hear("job", both, signal);
  hear("nodes", both, signal);
  hear("back", both, signal);
  hear("forecast", () => view.draw(), signal);
  hear("theme", () => { view.draw(); view.fillNodes(); }, signal);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) both(); }, { signal });
  const clock = setInterval(() => { if (!document.hidden && view.gantt && !view.chart.window) view.draw(); }, 30_000);
  // How busy real GPUs are changes without an event.
  const loads = setInterval(() => { if (!document.hidden && view.measured) nodes(); }, LOADS_MS);
  signal.addEventListener("abort", () => { clearInterval(clock); clearInterval(loads); });
  both();
}
