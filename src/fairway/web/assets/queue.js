// The queue: all jobs, live, to search, filter and sort.

import { hear } from "./bus.js";
import { h, say } from "./dom.js";
import { COLUMNS, naturalOrder, orderBy, searched, whenOf } from "./job-columns.js";
import { typing } from "./keys.js";
import { arrayOf, folded } from "./folded-arrays.js";
import { GROUP, GROUPS, groupOf, stateText, toneOf } from "./states.js";
import { allJobs, known, scrolled, watch } from "./store.js";
import { VirtualList } from "./virtual-list.js";

const NARROW = matchMedia("(max-width: 760px)");
const LEAST_MS = 300;
const ANY = "";
/** What was asked for; it outlives the view, so that coming back from a job finds the same list. */
const kept = { q: ANY, group: ANY, state: ANY, user: ANY, queue: ANY, sort: ANY, tasks: ANY, picked: null, top: 0 };
const KEPT_IN_ADDRESS = ["q", "group", "state", "user", "queue", "sort", "tasks"];
/** What a row is known by on the screen: an array may be there as several rows. */
const keyOf = (item) => item.key ?? item.id;

function emptyRow() {
  const cells = Object.fromEntries(COLUMNS.map(({ key, right }) => [key, h("span", { class: `c-${key}${right ? " right" : ""}`, role: "gridcell" })]));
  const link = h("a", {});
  const dot = h("i", { class: "dot", "aria-hidden": "true" });
  const word = h("span", {});
  const bar = h("i", { class: "bar", "aria-hidden": "true" });
  const done = h("span", {});
  const [verb, at, spread] = [h("span", { class: "soft" }), h("b", {}), h("span", { class: "soft spread" })];
  cells.id.append(link);
  cells.state.append(dot, word);
  cells.progress.append(bar, done);
  cells.when.append(verb, " ", at, " ", spread);
  const heading = h("span", { class: "heading", role: "gridcell" });
  const node = h("div", { class: "row", role: "row" }, heading, Object.values(cells));
  node.parts = { cells, link, word, bar, done, verb, at, spread, heading };
  return node;
}

function fillRow(node, item, index, picked) {
  const { cells, link, word, bar, done, verb, at, spread, heading } = node.parts;
  node.setAttribute("aria-rowindex", index + 2);
  if (item.heading) {
    node.className = "row is-heading";
    delete node.dataset.job;
    node.removeAttribute("id");
    say(heading, item.heading);
    return;
  }
  node.className = `row ${toneOf(item.state)}${keyOf(item) === picked ? " picked" : ""}`;
  node.id = `row-${keyOf(item)}`;
  node.dataset.job = item.id;
  node.dataset.state = item.state;
  node.setAttribute("aria-selected", keyOf(item) === picked);
  say(link, item.id);
  if (link.dataset.to !== item.id) { link.href = `#/job/${encodeURIComponent(item.id)}`; link.dataset.to = item.id; }
  say(word, stateText(item.state));
  for (const { key, text } of COLUMNS) if (text) say(cells[key], text(item));
  const share = item.steps ? Math.min(1, item.step / item.steps) : null;
  bar.hidden = share === null;
  bar.style.setProperty("--done", share ?? 0);
  say(done, share === null ? (item.step ? item.step.toLocaleString("en") : "") : `${Math.floor(share * 100)} %`);
  const told = whenOf(item);
  say(verb, told.word);
  say(at, told.at);
  say(spread, told.spread);
  cells.when.title = told.full;
  cells.why.title = cells.why.textContent;
  cells.name.title = item.name;
}

function wanted() {
  const words = kept.q.toLowerCase().split(/\s+/).filter(Boolean);
  const counts = { running: 0, waiting: 0, ended: 0 };
  const rows = [];
  let arrays = false;
  for (const row of allJobs()) {
    if ((kept.user && row.user !== kept.user) || (kept.queue && (row.queue || "default") !== kept.queue)) continue;
    if ((kept.state && row.state !== kept.state) || !words.every((word) => searched(row).includes(word))) continue;
    const group = groupOf(row.state);
    counts[group] += 1;
    arrays ||= arrayOf(row.id) !== undefined;
    if (!kept.group || kept.group === group) rows.push(row);
  }
  return { rows: kept.tasks || !arrays ? rows : folded(rows, naturalOrder), counts, arrays };
}

function ordered(rows, counts) {
  if (kept.sort) return orderBy(kept.sort.replace("-", ""), kept.sort.startsWith("-"))(rows);
  rows.sort(naturalOrder);
  // Rows of a phone are as high as three lines; a heading would be, too.
  if (NARROW.matches) return rows;
  const items = [];
  let group = null;
  for (const row of rows) {
    if (groupOf(row.state) !== group) {
      group = groupOf(row.state);
      items.push({ heading: `${group} · ${counts[group].toLocaleString("en")}` });
    }
    items.push(row);
  }
  return items;
}

const pick = (name, label, choices) => h("select", { "aria-label": label, "data-filter": name }, choices);

function toolbar(changed) {
  const search = h("input", { "type": "search", "placeholder": "Search", "aria-label": "Search jobs by id, name, user, queue, state, reason or command", "aria-keyshortcuts": "/", "value": kept.q, "spellcheck": "false" });
  search.addEventListener("input", () => changed("q", search.value));
  const groups = h("div", { class: "choice", role: "group", "aria-label": "Which jobs" });
  for (const group of [ANY, ...GROUPS]) {
    groups.append(h("button", { type: "button", "data-group": group || "all", onclick: () => changed("group", group) }, h("span", {}, group || "all"), " ", h("b", {})));
  }
  const states = h("option", { value: "" }, "any state");
  const state = pick("state", "State", [states, ...Object.keys(GROUP).map((one) => h("option", { value: one }, stateText(one)))]);
  const sort = pick("sort", "Order", [h("option", { value: "" }, "in order of the queue"), ...COLUMNS.map(({ key, label }) => h("option", { value: key }, `by ${label.toLowerCase()}`))]);
  sort.classList.add("narrow");
  const filters = { user: pick("user", "User", []), queue: pick("queue", "Queue", []), state, sort };
  for (const [name, select] of Object.entries(filters)) select.addEventListener("change", () => changed(name, select.value));
  const each = h("input", { type: "checkbox", checked: Boolean(kept.tasks) });
  each.addEventListener("change", () => changed("tasks", each.checked ? "all" : ANY));
  const tasks = h("label", { class: "check" }, each, " each task of an array");
  const count = h("span", { class: "soft count", role: "status" });
  const node = h("div", { class: "toolbar" }, search, groups, filters.user, filters.queue, state, sort, tasks, count);
  return { node, search, groups, filters, tasks, count };
}

/** Offers the users or queues that there are. */
function offer(select, names, any, current) {
  const all = [...new Set([...names, ...(current ? [current] : [])])].sort();
  if (select.dataset.names === all.join("\n")) return;
  select.dataset.names = all.join("\n");
  select.replaceChildren(h("option", { value: "" }, any), ...all.map((name) => h("option", { value: name }, name)));
  select.value = current;
}

function heads(changed) {
  return h("div", { class: "row head", role: "row", "aria-rowindex": 1 }, COLUMNS.map(({ key, label, right }) => {
    const next = () => (kept.sort === key ? `-${key}` : kept.sort === `-${key}` ? ANY : key);
    const button = h("button", { type: "button", "data-sort": key, onclick: () => changed("sort", next()) }, label);
    return h("span", { class: `c-${key}${right ? " right" : ""}`, role: "columnheader" }, button);
  }));
}

/** What to show where no job is listed. */
function emptyText(filtered) {
  if (!known().loaded) return "Loading …";
  return filtered ? "No job matches. Esc clears the search." : "No jobs yet. `fairway submit -- python train.py` or Submit above starts the first one.";
}

/** Remembers what was asked for in the address, so that it can be shared and reloaded. */
function keepInAddress() {
  const query = new URLSearchParams(KEPT_IN_ADDRESS.filter((name) => kept[name]).map((name) => [name, kept[name]]));
  history.replaceState(null, "", `#/queue${query.size ? `?${query}` : ""}`);
}

function keyboard(view, signal) {
  const move = (by) => {
    const { items } = view.list;
    const from = items.findIndex((item) => item.id !== undefined && keyOf(item) === kept.picked);
    let to = Math.max(0, Math.min(items.length - 1, from < 0 && by === 1 ? 0 : from + by));
    while (items[to]?.heading) to += by < 0 && to > 0 ? -1 : 1;
    if (!items[to]) return;
    kept.picked = keyOf(items[to]);
    view.list.reveal(to);
    view.list.render(true);
    view.grid.setAttribute("aria-activedescendant", `row-${kept.picked}`);
    view.grid.focus({ preventScroll: true });
  };
  const moves = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target === view.bar.search) {
      if (event.key === "Escape") { view.changed("q", ANY); view.grid.focus({ preventScroll: true }); }
      if (event.key === "Enter" || event.key === "ArrowDown") { event.preventDefault(); move(-Infinity); }
      return;
    }
    const free = [view.grid, document.body, document.getElementById("main")].includes(event.target);
    const isKey = event.key in moves && (event.key.length === 1 || free);
    if (typing(event) || (event.target.tagName === "BUTTON" && !isKey)) return;
    if (isKey) { event.preventDefault(); move(moves[event.key]); }
    else if (event.key === "Enter" && event.target.tagName !== "A") {
      const picked = view.list.items.find((item) => item.id !== undefined && keyOf(item) === kept.picked);
      if (picked) location.hash = `#/job/${encodeURIComponent(picked.id)}`;
    }
    if (event.key === "Escape" && kept.q) view.changed("q", ANY);
  }, { signal });
}

/** Leaves the columns out in which no job has anything. */
function fitColumns(grid) {
  let [queues, priorities] = [false, false];
  for (const row of allJobs()) {
    queues ||= row.queue !== "";
    priorities ||= row.priority !== 0;
  }
  grid.classList.toggle("no-queues", !queues);
  grid.classList.toggle("no-priorities", !priorities);
}

function refill(view) {
  fitColumns(view.grid);
  const { rows, counts, arrays } = wanted();
  view.bar.tasks.hidden = !arrays;
  const filtered = KEPT_IN_ADDRESS.some((name) => name !== "sort" && name !== "tasks" && kept[name]);
  view.list.set(ordered(rows, counts));
  view.empty.hidden = rows.length > 0;
  say(view.empty, emptyText(filtered));
  view.grid.setAttribute("aria-rowcount", rows.length + 1);
  const total = counts.running + counts.waiting + counts.ended;
  for (const button of view.bar.groups.children) {
    const group = button.dataset.group === "all" ? ANY : button.dataset.group;
    button.setAttribute("aria-pressed", kept.group === group);
    say(button.lastElementChild, (group ? counts[group] : total).toLocaleString("en"));
  }
  const left = known().left_out;
  say(view.bar.count, [filtered ? `${rows.length.toLocaleString("en")} rows` : "", left ? `${left.toLocaleString("en")} older ended jobs are not listed` : ""].filter(Boolean).join(" · "));
  const { user, queue, state, sort } = view.bar.filters;
  offer(user, new Set([...allJobs()].map((row) => row.user)), "any user", kept.user);
  offer(queue, new Set([...allJobs()].map((row) => row.queue || "default")), "any queue", kept.queue);
  for (const [select, value] of [[user, kept.user], [queue, kept.queue], [state, kept.state], [sort, kept.sort]]) select.value = value;
  for (const head of view.heads.children) {
    const key = head.firstElementChild.dataset.sort;
    head.setAttribute("aria-sort", kept.sort === key ? "ascending" : kept.sort === `-${key}` ? "descending" : "none");
  }
}

/** Shows the queue. */
export function show({ root, options, signal, ready }) {
  for (const name of KEPT_IN_ADDRESS) if (options.size) kept[name] = options.get(name) || ANY;
  if (!COLUMNS.some(({ key }) => key === kept.sort.replace("-", ""))) kept.sort = ANY;
  const view = {};
  view.changed = (name, value) => {
    kept[name] = value;
    if (name === "q" && view.bar.search.value !== value) view.bar.search.value = value;
    view.grid.scrollTop = 0;
    keepInAddress();
    refill(view);
  };
  view.bar = toolbar(view.changed);
  view.heads = heads(view.changed);
  view.empty = h("p", { class: "empty", hidden: true });
  const sheet = h("div", { class: "sheet", role: "rowgroup" });
  view.grid = h("div", { "class": "jobs", "role": "grid", "tabindex": 0, "aria-label": "Jobs", "aria-readonly": "true" }, h("div", { role: "rowgroup", class: "heads" }, view.heads), sheet, view.empty);
  root.append(h("h1", { class: "sr" }, "Queue"), view.bar.node, view.grid);
  view.list = new VirtualList(view.grid, sheet, { make: emptyRow, fill: (node, item, index) => fillRow(node, item, index, kept.picked), height: () => (NARROW.matches ? 62 : 29) });
  sheet.addEventListener("click", (event) => {
    const row = event.target.closest("[data-job]");
    if (!row || event.target.closest("a") || String(getSelection())) return;
    kept.picked = row.id.replace("row-", "");
    location.hash = `#/job/${encodeURIComponent(row.dataset.job)}`;
  });
  keyboard(view, signal);
  const update = () => { refill(view); if (known().loaded) ready(); };
  let due = 0;
  hear("change", () => { due ||= setTimeout(() => { due = 0; if (!signal.aborted) update(); }, document.body.dataset.ready ? LEAST_MS : 0); }, signal);
  NARROW.addEventListener("change", update, { signal });
  const clock = setInterval(() => { if (!document.hidden) view.list.render(true); }, 1000);
  watch(() => view.list.seen().map((item) => item.lead ?? item.id).filter(Boolean));
  view.grid.addEventListener("scroll", () => { kept.top = view.grid.scrollTop; scrolled(); }, { passive: true });
  signal.addEventListener("abort", () => { clearInterval(clock); watch(() => []); });
  const { top } = kept;
  update();
  view.grid.scrollTop = top;
  if (options.get("focus") === "search") view.bar.search.focus();
}
