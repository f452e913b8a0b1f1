// The report itself: which numbers go into which chart, the controls, the tables.

import { make, draw } from "./dom.js";
import { Gantt } from "./gantt.js";
import { LineChart, indexBefore } from "./line-chart.js";
import { brief, duration, last, percent, plain } from "./numbers.js";
import { colour, dash, swatchClass } from "./tip.js";

window.addEventListener("error", (event) => { document.body.dataset.error = event.message; });

const data = JSON.parse(document.getElementById("data").textContent);
const policies = data.policies;
// Of many policies the best are shown; `all` after a click on "Show all".
const rest = policies.map((_, index) => index).filter((index) => index >= data.shown);
const view = { hidden: new Set(rest), raised: null, all: rest.length === 0 };
const redraws = [];
const redrawAll = () => redraws.forEach((redraw) => redraw());
// Lists of names are in the data once, because every policy ran the same jobs on the same GPUs.
for (const { gantt } of policies) {
  for (const key of ["rows", "jobs", "users"]) if (gantt && gantt[key] !== undefined) gantt[key] = data.names[gantt[key]];
}

const find = (id, part) => document.querySelector(`#${id} ${part}`);
const listed = () => policies.map((policy, index) => ({ policy, index })).filter(({ index }) => view.all || index < data.shown);
const visible = () => policies.map((policy, index) => ({ policy, index })).filter(({ index }) => !view.hidden.has(index));
const hint = (id, text) => { find(id, ".hint").textContent = text; };
const positive = (values) => values.filter((v) => v !== null && v > 0);

function choice(host, name, options, current, onPick) {
  const group = make("div", { class: "choice", role: "group", "aria-label": name }, host);
  for (const [value, label] of options) {
    const button = make("button", { type: "button", "aria-pressed": value === current, "data-value": value }, group, label);
    button.addEventListener("click", () => {
      for (const other of group.children) other.setAttribute("aria-pressed", other === button);
      onPick(value);
    });
  }
  return group;
}

function legend(host, note) {
  const render = () => {
    host.replaceChildren();
    if (policies.length < 2 && !note) return;
    listed().forEach(({ policy, index }) => {
      const button = make("button", { type: "button", "aria-pressed": !view.hidden.has(index), title: "Click hides or shows; shift-click shows only this one" }, host);
      const line = draw("svg", { viewBox: "0 0 20 8", "aria-hidden": "true" }, button);
      draw("path", { class: `line ${colour(index)}${dash(index)}`, d: "M0 4H20" }, line);
      make("span", {}, button, policy.label);
      const extra = note && note(policy);
      if (extra) make("span", { class: "spread" }, button, extra);
      button.addEventListener("click", (event) => toggle(index, event.shiftKey));
      button.addEventListener("pointerenter", () => { view.raised = index; drawLines(); });
      button.addEventListener("pointerleave", () => { view.raised = null; drawLines(); });
    });
    if (rest.length) showAllButton(host);
  };
  redraws.push(render);
  render();
}

function showAllButton(host) {
  const text = view.all ? `Show the best ${data.shown}` : `Show all ${policies.length} policies`;
  const button = make("button", { type: "button", class: "all" }, host, text);
  button.addEventListener("click", () => {
    view.all = !view.all;
    view.hidden = new Set(view.all ? [] : rest);
    view.raised = null;
    redrawAll();
  });
}

// Without this script the table has all rows.
function foldTable(table) {
  const host = make("span", {}, document.getElementById("compare-controls"));
  const render = () => {
    for (const row of table.tBodies[0].rows) row.hidden = !view.all && Number(row.dataset.policy) >= data.shown;
    host.replaceChildren();
    showAllButton(host);
  };
  if (!rest.length) return;
  redraws.push(render);
  render();
}

function toggle(index, alone) {
  const others = policies.map((_, i) => i).filter((i) => i !== index);
  if (alone) view.hidden = view.hidden.size === others.length && !view.hidden.has(index) ? new Set(view.all ? [] : rest) : new Set(others);
  else if (!view.hidden.delete(index)) view.hidden.add(index);
  view.raised = null;
  redrawAll();
}

const lines = [];
const drawLines = () => lines.forEach((chart) => chart.render());
function lineChart(host, spec) {
  const chart = new LineChart(host, () => ({ ...spec(), raised: view.raised }));
  redraws.push(() => chart.render());
  return chart;
}

// A distribution either climbs to the share of jobs done, or falls as the share still to come (the tail, on a log scale).
function distributionChart(id, pick, x, words, extra = {}) {
  const state = { tail: false };
  choice(find(id, ".controls"), "How to draw the distribution", [["cdf", "all jobs"], ["tail", "tail"]], "cdf", (value) => {
    state.tail = value === "tail";
    redrawAll();
  });
  lines.push(lineChart(find(id, ".chart"), () => {
    const known = visible().map(({ policy, index }) => ({ index, label: policy.label, curve: pick(policy) })).filter(({ curve }) => curve);
    const all = policies.map(pick).filter(Boolean);
    if (!all.length) return { series: [], empty: "No finished job with its own row in these results." };
    const low = Math.min(...all.map(({ x: xs }) => positive(xs)[0] ?? Infinity));
    const high = Math.max(...all.map(({ x: xs }) => last(xs)));
    const domain = [Math.min(low, extra.include ?? low), Math.max(high, extra.include ?? high, low * 1.01)].map((v) => (Number.isFinite(v) && v > 0 ? v : 1));
    const rarest = Math.min(...all.map(({ all: n }) => 1 / n)) / 1.6;
    const series = known.map(({ index, label, curve }) => {
      const xs = curve.x.map((v) => Math.max(v, domain[0]));
      const ys = state.tail ? curve.y.map((y) => Math.max(1 - y, rarest)) : curve.y;
      return { index, label, x: xs, y: ys, start: state.tail ? 1 : 0, all: curve.y, until: last(curve.y) < 1 ? domain[1] : undefined };
    });
    return {
      name: words.name, series, x: { kind: x.kind, domain: [domain[0], domain[1] * 1.02], label: x.label },
      y: state.tail ? { kind: "log-share", domain: [rarest, 1], label: words.tailAxis } : { kind: "share", domain: [0, 1], label: words.axis },
      limit: extra.limit && { ...extra.limit, low: !state.tail }, title: (said) => (state.tail ? words.tailTitle(said) : words.title(said)),
      read: (one, at) => { const i = indexBefore(one.x, at); const y = i < 0 ? 0 : one.all[i]; return state.tail ? 1 - y : y; },
    };
  }));
}

function jctChart() {
  hint("jct", "Share of jobs done within a time (log scale). Further left and higher is better; tail shows the slowest jobs.");
  legend(find("jct", ".legend"));
  distributionChart("jct", (policy) => policy.jct, { kind: "log-time", label: "completion time (log scale)" }, {
    name: "Cumulative distribution of job completion times, one line per policy",
    axis: "share of jobs", tailAxis: "share of jobs still in the system",
    title: (t) => `done within ${t}`, tailTitle: (t) => `longer than ${t}`,
  });
}

const rho = { kind: "static" };
const RHO_KINDS = [["static", "static"], ["concurrent", "concurrent"], ["isolated", "isolated"]];
function pickRho(kind) {
  rho.kind = kind;
  for (const cell of document.querySelectorAll("#compare [data-rho]")) cell.hidden = cell.dataset.rho !== kind;
  for (const button of document.querySelectorAll('[aria-label="Which ρ"] button')) button.setAttribute("aria-pressed", button.dataset.value === kind);
  redrawAll();
}
function rhoChart() {
  hint("rho", "ρ = time taken / time with a fair share. Right of the line, jobs were treated unfairly; the legend gives their share.");
  choice(find("rho", ".controls"), "Which ρ", RHO_KINDS, rho.kind, pickRho);
  legend(find("rho", ".legend"), (policy) => {
    const share = policy.unfair[rho.kind];
    return share === null ? "" : `${percent(share)} unfair`;
  });
  distributionChart("rho", (policy) => policy.rho[rho.kind], { kind: "log-ratio", label: "ρ (log scale)" }, {
    name: "Cumulative distribution of finish-time fairness, one line per policy",
    axis: "share of jobs", tailAxis: "share of jobs above",
    title: (v) => `ρ up to ${v}`, tailTitle: (v) => `ρ above ${v}`,
  }, { include: 1.3, limit: { at: 1.05, name: "unfair beyond 1.05" } });
}

const binned = (series) => ({ x: series.v.map((_, i) => series.t0 + i * series.dt), y: series.v, until: series.t0 + series.v.length * series.dt });
const readBin = (series, at) => {
  const i = indexBefore(series.x, at);
  return i < 0 || at > series.until ? null : series.y[i];
};
function timeDomain(key) {
  const all = policies.map((policy) => policy[key]).filter(Boolean);
  return [Math.min(...all.map(({ t0 }) => t0)), Math.max(...all.map(({ t0, dt, v }) => t0 + dt * v.length))];
}
const binHint = (key) => {
  const sizes = policies.map((policy) => policy[key]).filter(Boolean).map(({ dt }) => dt);
  return sizes.length ? `, averaged over bins of ${duration(Math.max(...sizes))}` : "";
};

function queueChart() {
  const state = { key: "waiting" };
  const words = { waiting: "jobs waiting", running: "jobs running" };
  hint("queue", `Jobs in the system over time${binHint("waiting")}.`);
  choice(find("queue", ".controls"), "What to count", [["waiting", "waiting"], ["running", "running"]], "waiting", (value) => { state.key = value; redrawAll(); });
  legend(find("queue", ".legend"));
  lines.push(lineChart(find("queue", ".chart"), () => {
    const series = visible().filter(({ policy }) => policy[state.key]).map(({ policy, index }) => ({ index, label: policy.label, ...binned(policy[state.key]) }));
    if (!series.length) return { series, empty: "No series in these results." };
    const top = Math.max(1, ...series.map(({ y }) => Math.max(...y)));
    return {
      name: `${words[state.key]} over time, one line per policy`, series, height: 280, read: readBin,
      x: { kind: "time", domain: timeDomain(state.key), label: "time since the start of the trace" },
      y: { kind: "count", domain: [0, top * 1.05], label: words[state.key] }, title: (t) => `at ${t}`,
    };
  }));
}

function busyPanels() {
  hint("busy", `Share of GPUs in use${binHint("busy")}; the dotted line is the whole run's utilisation. All panels share one time axis.`);
  const host = find("busy", ".panels");
  if (!policies.some((policy) => policy.busy)) make("p", { class: "empty" }, host, "No series in these results.");
  policies.forEach((policy, index) => {
    if (!policy.busy) return;
    const panel = make("div", {}, host);
    const head = make("h3", {}, panel);
    make("span", { class: swatchClass(index), "aria-hidden": "true" }, head);
    make("span", {}, head, policy.label);
    make("span", {}, head, policy.utilisation === null ? "" : percent(policy.utilisation));
    const fold = () => { panel.hidden = view.hidden.has(index); };
    redraws.push(fold);
    fold();
    lineChart(make("div", {}, panel), () => ({
      name: `GPU utilisation over time under ${policy.label}`, area: true, height: 118, mean: policy.utilisation,
      series: [{ index, label: policy.label, ...binned(policy.busy) }], read: readBin,
      x: { kind: "time", domain: timeDomain("busy") }, y: { kind: "share", domain: [0, 1] }, title: (t) => `at ${t}`,
    }));
  });
}

function ganttChart() {
  const state = { policy: policies.findIndex((policy) => policy.gantt), byUser: false };
  const controls = find("gantt", ".controls");
  const host = find("gantt", ".gantt");
  if (state.policy < 0) { make("p", { class: "empty" }, host, "No Gantt in these results."); return; }
  const ends = policies.map(({ gantt: g }) => g).filter(Boolean).map((g) => [g.t0_s, g.t0_s + (g.kind === "raster" ? g.levels[0].length * g.bin_s : 1e5 * g.unit_s)]);
  const [low, high] = [Math.min(...ends.map(([start]) => start)), Math.max(...ends.map(([, end]) => end))];
  const whole = [low > 0 && low < high / 10 ? 0 : low, high];
  const chart = new Gantt(host, {
    current: () => policies[state.policy].gantt, domain: () => whole, byUser: () => state.byUser,
    name: () => policies[state.policy].label, onZoom: (zoomed) => { reset.hidden = !zoomed; },
  });
  redraws.push(() => chart.render());
  const label = make("label", { class: "pick" }, controls, "policy");
  const select = make("select", {}, label);
  policies.forEach((policy, index) => { if (policy.gantt) make("option", { value: index }, select, policy.label); });
  select.addEventListener("change", () => { state.policy = Number(select.value); describe(); chart.render(); });
  const paint = choice(controls, "Colour blocks by", [["job", "by job"], ["user", "by user"]], "job", (value) => { state.byUser = value === "user"; chart.render(); });
  const reset = make("button", { type: "button", class: "plain", hidden: "" }, controls, "Show all");
  reset.addEventListener("click", () => chart.zoom(null));
  const describe = () => {
    const { gantt } = policies[state.policy];
    paint.hidden = gantt.kind === "raster" || gantt.users === undefined;
    hint("gantt", gantt.kind === "raster"
      ? `Share of a node's GPUs in use, in bins of ${duration(gantt.bin_s)}. Drag to zoom, double-click to reset.`
      : "One row per GPU, one block per job; jobs that share a GPU are drawn above each other. Hover names the job and outlines all its blocks; drag to zoom, double-click to reset.");
    if (gantt.kind !== "raster") return;
    const key = make("span", {}, find("gantt", ".hint"), "  idle");
    make("span", { class: "ramp" }, key);
    key.append("busy");
  };
  describe();
  chart.render();
}

// A long name may break after its dashes and underscores, not inside a word.
const breakable = (name) => name.split(/(?<=[-_/,])/).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));

function ownersTable() {
  const state = { who: data.users.names.length ? "users" : "queues", what: "jct", rows: 15 };
  const host = find("owners", ".scroll");
  const controls = find("owners", ".controls");
  const kinds = [["users", "users"], ["queues", "queues"]].filter(([kind]) => data[kind].names.length);
  if (!kinds.length) { make("p", { class: "empty" }, host, "No users or queues in these results."); return; }
  const pick = (key) => (value) => { state[key] = value; state.rows = 15; render(); };
  if (kinds.length > 1) choice(controls, "Whom to list", kinds, state.who, pick("who"));
  choice(controls, "What to show", [["jct", "mean JCT"], ["queue", "mean queueing"]], state.what, pick("what"));
  const render = () => {
    const owners = data[state.who];
    hint("owners", `${state.what === "jct" ? "Mean completion time" : "Mean time in the queue"} per ${state.who.slice(0, -1)} and policy; the largest consumers of GPU time first.`
      + (owners.all > owners.names.length ? ` The first ${owners.names.length} of ${owners.all}.` : ""));
    host.replaceChildren();
    const shown = listed();
    const crowded = shown.length > 8;
    const table = make("table", { class: crowded ? "owners crowded" : "owners" }, host);
    const head = make("tr", {}, make("thead", {}, table));
    make("th", { scope: "col", class: "text" }, head, state.who.slice(0, -1));
    for (const name of ["jobs", "GPU-h"]) make("th", { scope: "col" }, head, name);
    for (const { policy } of shown) make("th", { scope: "col" }, head).append(...breakable(policy.label));
    const body = make("tbody", {}, table);
    owners.names.slice(0, state.rows).forEach((name, i) => {
      const row = make("tr", {}, body);
      make("th", { scope: "row" }, row, name);
      make("td", {}, row, plain(owners.jobs[i], 6));
      make("td", {}, row, plain(owners.gpu_h[i]));
      const values = shown.map(({ index }) => owners[state.what][i][index]);
      const known = values.filter((v) => v !== null);
      const best = known.length > 1 && Math.min(...known) < Math.max(...known) ? Math.min(...known) : null;
      for (const value of values) make("td", { class: value !== null && value === best ? "best" : "" }, row, crowded ? brief(value) : duration(value));
    });
    if (owners.names.length <= state.rows) return;
    const more = make("button", { type: "button", class: "plain" }, host, `Show all ${owners.names.length}`);
    more.addEventListener("click", () => { state.rows = Infinity; render(); });
  };
  if (rest.length) redraws.push(render);
  render();
}

function sortable(table) {
  const heads = [...table.querySelectorAll("thead tr:last-child th")];
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.setAttribute("aria-sort", other === head ? (down ? "descending" : "ascending") : "none"));
    const body = table.tBodies[0];
    const key = (row) => row.children[column].dataset.sort;
    const text = head.classList.contains("text");
    const compare = (a, b) => {
      if (key(a) === "" || key(b) === "") return (key(a) === "") - (key(b) === "");
      return (text ? key(a).localeCompare(key(b)) : Number(key(a)) - Number(key(b))) * (down ? -1 : 1);
    };
    body.append(...[...body.rows].sort(compare));
  }));
}

sortable(document.getElementById("compare"));
foldTable(document.getElementById("compare"));
choice(document.getElementById("compare-controls"), "Which ρ", RHO_KINDS.map(([kind, label]) => [kind, `ρ ${label}`]), rho.kind, pickRho);
for (const part of [jctChart, rhoChart, queueChart, busyPanels, ganttChart, ownersTable]) part();
document.body.dataset.ready = "1";
