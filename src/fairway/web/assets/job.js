// One job: why and when, its course, its log, its terms, and what can be done to it.

import { attempt, get } from "./api.js";
import { hear } from "./bus.js";
import { h } from "./dom.js";
import { attemptsCard, eventsCard, termsCard, whyCard } from "./job-facts.js";
import { curvesCard } from "./job-curves.js";
import { logCard } from "./job-log.js";
import { ago, brief, percent } from "./numbers.js";
import { hasEnded, stateText, toneOf } from "./states.js";
import { jobOf, now_s, refresh } from "./store.js";
import { jobLink, sortedTable } from "./table.js";
import { verbButtons } from "./verbs.js";

const OFTEN_MS = 2000;
const SELDOM_MS = 15_000;
const IDLE_MS = 30_000;

const chip = (state) => h("span", { class: `chip ${toneOf(state)}`, "data-state": state }, h("i", { class: "dot", "aria-hidden": "true" }), stateText(state));

function headOf(job, acted, current) {
  const share = job.steps ? Math.min(1, job.step / job.steps) : null;
  const bar = share !== null && h("div", { "class": "progress", "role": "progressbar", "aria-valuenow": Math.round(share * 100), "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": "Progress" }, h("i", { class: "bar" }), h("span", {}, percent(Math.floor(share * 1000) / 1000)));
  if (bar) bar.firstChild.style.setProperty("--done", share);
  return h("header", { class: "job-head" },
    h("div", {}, h("h1", {}, job.name || `Job ${job.id}`, " ", chip(job.state)),
      h("p", { class: "soft" }, `job ${job.id} · ${job.user}${job.queue ? ` · queue ${job.queue}` : ""} · submitted ${ago(now_s() - job.submitted_s)} ago`)),
    bar, h("div", { class: "verbs", role: "group", "aria-label": "What can be done" }, verbButtons(job, acted, current)));
}

const gone = (id, note) => h("div", { class: "card notice" }, h("h1", {}, `Job ${id} is not there`), h("p", {}, note), h("p", {}, h("a", { href: "#/queue" }, "Back to the queue")));

const TASK_COLUMNS = [
  { label: "Task", value: (task) => Number(task.id.split("_")[1] ?? task.id), cell: (task) => jobLink(task.id) },
  { label: "State", value: (task) => task.state, cell: (task) => chip(task.state) },
  { label: "GPUs", value: (task) => task.gpus, cell: (task) => String(task.gpus), right: true },
  { label: "Ran", value: (task) => task.ran_s, cell: (task) => (task.started_s ? brief(Math.round(task.ran_s)) : ""), right: true },
  { label: "Why or what", value: (task) => task.reason, cell: (task) => task.reason || task.command },
];

/** An array as one job: what can be done to it is what can be done to one of its tasks, a running one if there is any. */
function wholeOf({ id, tasks }) {
  const any = (test) => tasks.find(test);
  return { ...(any((task) => task.state === "RUNNING") || any((task) => !hasEnded(task.state)) || tasks[0]), id, name: tasks[0].name, tasks: tasks.length };
}

const arrayHead = (whole, acted, current) => h("header", { class: "job-head" },
  h("div", {}, h("h1", {}, whole.name || `Array ${whole.id}`), h("p", { class: "soft" }, `array ${whole.id} · ${whole.user} · ${whole.tasks.toLocaleString("en")} tasks`)),
  h("div", { class: "verbs", role: "group", "aria-label": "What can be done" }, verbButtons(whole, acted, current)));

/** How many ranks may have written a log. */
function ranksOf(job) {
  const nodes = Math.max(1, ...job.history.map((one) => one.nodes?.length ?? 1));
  return job.request.processes === "per_gpu" ? Math.max(job.gpus, ...job.history.map((one) => one.gpus.length)) : nodes;
}

/** Calls `act` when asked, with a pause between, or at once if asked for `now`. */
function paced(act, pause_ms, signal) {
  let [last, due, busy] = [0, 0, false];
  const run = async () => {
    due = 0;
    if (signal.aborted || document.hidden) return;
    busy = true;
    last = Date.now();
    try {
      await act();
    } finally {
      busy = false;
    }
  };
  return (now = false) => {
    if ((!now && (due || busy)) || signal.aborted) return;
    clearTimeout(due);
    due = setTimeout(run, now ? 0 : Math.max(0, last + pause_ms - Date.now()));
  };
}

class JobView {
  constructor(root, id, signal, ready) {
    Object.assign(this, { root, id, signal, ready, path: `/v1/jobs/${encodeURIComponent(id)}`, job: null, whole: null, why: null });
    this.refresh = paced(() => this.load(), OFTEN_MS, signal);
    this.refreshMore = paced(() => this.loadMore(), SELDOM_MS, signal);
    this.acted = () => { this.refresh(true); this.refreshMore(true); };
  }

  async load() {
    const told = await attempt(() => get(this.path, this.signal), (error) => this.failed(error));
    if (!told) return;
    if (told.tasks) { this.fillArray(told); this.ready(); return; }
    const first = this.job === null;
    this.job = told;
    if (first) this.build();
    this.fill();
    this.ready();
  }

  /** Shows the tasks of an array. Their order and the focus stay. */
  fillArray(told) {
    this.whole = wholeOf(told);
    if (this.tasks?.isConnected) this.tasks.update(told.tasks);
    else {
      document.title = `Array ${told.id} · Fairway`;
      this.head = h("div", { class: "slot" });
      this.tasks = sortedTable({ name: "Tasks", columns: TASK_COLUMNS, rows: told.tasks, mark: (task) => ({ "data-job": task.id }) });
      this.root.replaceChildren(this.head, h("div", { class: "card" }, this.tasks));
    }
    this.put("head", arrayHead(this.whole, this.acted, () => this.whole));
  }

  /** Asks for what changes seldom. An answer may come before the job is known or after it was deleted. */
  async loadMore() {
    if (this.whole) return;
    const quiet = () => undefined;
    const ask = (what) => attempt(() => get(`${this.path}/${what}`, this.signal), quiet);
    ask("course").then((told) => { if (told && this.curves) this.curves.set(told); });
    ask("events").then((told) => { if (told && this.events) this.put("events", eventsCard(told)); });
    if (this.job && hasEnded(this.job.state)) return;
    const why = await ask("why");
    if (why) { this.why = why; if (this.job) this.fill(); }
  }

  failed(error) {
    if (error.status === 404) {
      if (jobOf(this.id)) refresh([this.id]).catch(() => {});
      const note = this.job || this.whole ? "It was deleted while you looked at it: ended jobs are kept for a while only, as the configuration says." : `${error.message}. It may have been deleted: ended jobs are kept for a while only.`;
      this.root.replaceChildren(gone(this.id, note));
      this.job = null;
      this.whole = null;
    } else if (!this.job && !this.whole) this.root.replaceChildren(h("div", { class: "card notice" }, h("h1", {}, `Job ${this.id}`), h("p", {}, error.message)));
    this.ready();
  }

  build() {
    document.title = `${this.job.name || `Job ${this.id}`} · Fairway`;
    this.curves = curvesCard();
    const log = logCard(this.id, ranksOf(this.job), () => this.job === null || hasEnded(this.job.state), this.signal);
    for (const slot of ["head", "reasons", "terms", "attempts", "events"]) this[slot] = h("div", { class: "slot" });
    this.root.replaceChildren(this.head, h("div", { class: "columns" },
      h("div", {}, this.reasons, this.curves.node, log), h("div", {}, this.terms, this.attempts, this.events)));
    this.refreshMore(true);
  }

  /** Shows a card in its place. What has not changed stays, and so does the focus on a button. */
  put(slot, node) {
    const host = this[slot];
    if (node && host.firstChild?.isEqualNode(node)) return;
    const { verb } = host.contains(document.activeElement) ? document.activeElement.dataset : {};
    host.replaceChildren(...(node ? [node] : []));
    if (verb) host.querySelector(`[data-verb=${verb}]`)?.focus();
  }

  fill() {
    const opened = this.terms.querySelector("details[open]") !== null;
    this.put("head", headOf(this.job, this.acted, () => this.job));
    this.put("reasons", whyCard(this.job, this.why));
    this.put("terms", termsCard(this.job));
    this.put("attempts", attemptsCard(this.job));
    if (opened) this.terms.querySelector("details")?.setAttribute("open", "");
  }
}

/** Shows a job, or the tasks of an array. */
export function show({ root, argument, signal, ready }) {
  root.append(h("p", { class: "empty" }, "Loading …"));
  const view = new JobView(root, argument, signal, ready);
  hear("job", (event) => { if (event.job === argument || event.job.startsWith(`${argument}_`)) { view.refresh(); view.refreshMore(); } }, signal);
  hear("back", view.acted, signal);
  hear("forecast", () => { if (view.job) view.fill(); }, signal);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) view.acted(); }, { signal });
  const clock = setInterval(() => { if (!document.hidden && view.job && !hasEnded(view.job.state)) view.refresh(); }, IDLE_MS);
  signal.addEventListener("abort", () => clearInterval(clock));
  view.refresh(true);
}
