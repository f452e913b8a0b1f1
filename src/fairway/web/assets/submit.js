// Submit: a command, an sbatch script or a SkyPilot file, checked as it is typed.

import { attempt, call } from "./api.js";
import { field } from "./conditions.js";
import { h } from "./dom.js";
import { startOf } from "./expected.js";
import { durationOf } from "./quantities.js";
import { announce } from "./say.js";
import { maySubmit } from "./session.js";
import { allJobs } from "./store.js";

const CHECK_MS = 350;
const LOOK_MS = 1200;
const MOST_ASKED = 100;
const KINDS = {
  command: { label: "Command", hint: "python train.py --epochs 10", rows: 4 },
  sbatch: { label: "sbatch script", hint: "#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --gpus=2\npython train.py", rows: 18 },
  skypilot: { label: "SkyPilot file", hint: "name: train\nresources:\n  accelerators: V100:2\nrun: |\n  python train.py", rows: 18 },
};
const kept = { kind: "command", texts: { command: "", sbatch: "", skypilot: "" } };

/** Terms as a form. Only what is filled in is sent, and it counts more than the text. */
function termFields(changed) {
  const queues = [...new Set([...allJobs()].map((row) => row.queue).filter(Boolean))].sort();
  const input = (name, more = {}) => h("input", { type: "text", name, autocomplete: "off", spellcheck: "false", oninput: changed, ...more });
  const whole = (control) => (control.value === "" ? undefined : control.valueAsNumber);
  const text = (control) => control.value.trim() || undefined;
  const preempt = h("select", { name: "preempt", onchange: changed }, ["", "checkpoint", "suspend", "restart", "never"].map((one) => h("option", { value: one }, one || "default")));
  const all = [
    { key: "gpus", label: "GPUs", control: input("gpus", { type: "number", min: 1, step: 1, placeholder: "1" }), read: whole },
    { key: "name", label: "name", control: input("name"), read: text },
    { key: "queue", label: "queue", control: input("queue", { list: "queues" }), read: text },
    { key: "priority", label: "priority", control: input("priority", { type: "number", step: 1, placeholder: "0" }), read: whole, hint: "higher is served first; negative is opportunistic" },
    { key: "limit_s", label: "time limit", control: input("limit_s", { placeholder: "4h, 1d12h" }), read: (control) => durationOf(control.value) ?? undefined },
    { key: "cwd", label: "working directory", control: input("cwd", { value: localStorage.getItem("fairway-cwd") ?? "", placeholder: "/home/me/project" }), read: text },
    { key: "preempt", label: "when GPUs are taken away", control: preempt, read: text, hint: "checkpoint: SIGTERM, it saves and goes on later" },
  ];
  const wrong = new Map(all.map(({ key }) => [key, h("small", { class: "worse", role: "alert", hidden: true })]));
  const nodes = all.map(({ key, label, control, hint }) => { const node = field(label, control, hint); node.append(wrong.get(key)); return node; });
  const read = () => Object.fromEntries(all.map(({ key, control, read: value }) => [key, value(control)]).filter(([, value]) => value !== undefined));
  const show = (problems) => {
    for (const [key, node] of wrong) {
      const found = problems.filter((one) => one.field === key).map((one) => one.text);
      node.hidden = !found.length;
      node.textContent = found.join("; ");
      all.find((one) => one.key === key).control.toggleAttribute("aria-invalid", found.length > 0);
    }
  };
  return { nodes: [...nodes, h("datalist", { id: "queues" }, queues.map((name) => h("option", { value: name })))], read, show, keys: new Set(wrong.keys()) };
}

/** A field for text with numbers of lines; those with a problem are marked. */
function editor(changed) {
  const gutter = h("div", { "class": "gutter", "aria-hidden": "true" });
  const area = h("textarea", { "aria-label": "What to run", "spellcheck": "false", "autocapitalize": "off", "wrap": "off", "aria-describedby": "findings" });
  const number = (bad = new Set()) => {
    const lines = area.value.split("\n").length;
    gutter.replaceChildren(...Array.from({ length: lines }, (_, at) => h("div", { class: bad.has(at + 1) ? "worse" : "" }, at + 1)));
    gutter.scrollTop = area.scrollTop;
  };
  area.addEventListener("scroll", () => { gutter.scrollTop = area.scrollTop; }, { passive: true });
  area.addEventListener("input", () => { kept.texts[kept.kind] = area.value; number(); changed(); });
  const pick = (kind) => {
    kept.kind = kind;
    area.value = kept.texts[kind];
    area.placeholder = KINDS[kind].hint;
    area.rows = KINDS[kind].rows;
    number();
  };
  return { node: h("div", { class: "editor" }, gutter, area), area, pick, mark: number };
}

const finding = (one, bad) => (typeof one === "string" ? { text: one, bad } : { ...one, bad });

function findingsList(told, keys) {
  const all = [...told.problems.filter((one) => !keys.has(one.field)).map((one) => finding(one, true)), ...told.warnings.map((one) => finding(one, false))];
  return all.map(({ line, text, bad }) => h("li", { "class": bad ? "worse" : "soft", "data-line": line ?? null }, line ? h("b", {}, `line ${line}: `) : "", text));
}

/** The bodies as jobs that are only thought of: one for each task of an array. */
const imagined = (bodies) => bodies.flatMap(({ array, client_key: key, user, ...job }) => Array.from({ length: Math.min(MOST_ASKED, array?.length ?? 1) }, () => job));

class SubmitView {
  constructor(root, signal) {
    Object.assign(this, { root, signal, told: null, checking: null, due: 0, lookDue: 0 });
    const changed = () => this.later();
    this.terms = termFields(changed);
    this.editor = editor(changed);
    this.findings = h("ul", { id: "findings", class: "findings", "aria-live": "polite" });
    this.ready = h("p", { class: "answer", role: "status" });
    this.button = h("button", { type: "button", class: "main", disabled: true, onclick: () => this.submit() }, "Submit");
    const kinds = h("div", { class: "choice", role: "group", "aria-label": "What you have" }, Object.entries(KINDS).map(([kind, { label }]) => h("button", { "type": "button", "data-kind": kind, "onclick": () => this.pick(kind) }, label)));
    this.kinds = kinds;
    root.replaceChildren(h("header", { class: "view-head" }, h("h1", {}, "Submit")),
      h("div", { class: "columns" },
        h("div", { class: "card" }, h("div", { class: "title" }, kinds), this.editor.node, this.findings),
        h("div", { class: "card" }, h("div", { class: "title" }, h("h2", {}, "Terms")), h("div", { class: "fields" }, this.terms.nodes), this.ready, this.button)));
    this.pick(kept.kind);
    this.editor.area.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.submit(); });
    this.editor.area.focus({ preventScroll: true });
  }

  pick(kind) {
    this.editor.pick(kind);
    for (const button of this.kinds.children) button.setAttribute("aria-pressed", button.dataset.kind === kind);
    this.later();
  }

  later() {
    clearTimeout(this.due);
    clearTimeout(this.lookDue);
    this.checking?.abort();
    this.button.disabled = true;
    this.due = setTimeout(() => this.check(), CHECK_MS);
  }

  async check() {
    this.told = null;
    const terms = this.terms.read();
    if (Number.isNaN(terms.limit_s)) {
      this.terms.show([{ field: "limit_s", text: "write 90, 30m, 2h, 1h30m or 12:00:00" }]);
      return;
    }
    if (!kept.texts[kept.kind].trim()) {
      this.terms.show([]);
      this.findings.replaceChildren();
      this.ready.textContent = "";
      return;
    }
    const mine = new AbortController();
    this.checking = mine;
    const body = { kind: kept.kind, text: kept.texts[kept.kind], terms };
    const told = await attempt(() => call("POST", "/v1/submission", { body, signal: mine.signal }), (error) => ({ ok: false, problems: [{ text: error.message }], warnings: [], jobs: [] }));
    if (!told || mine.signal.aborted || this.signal.aborted) return;
    this.show(told, mine.signal);
  }

  show(told, signal) {
    this.told = told;
    this.terms.show(told.problems);
    this.findings.replaceChildren(...findingsList(told, this.terms.keys));
    this.editor.mark(new Set(told.problems.map(({ line }) => line)));
    this.button.disabled = !told.ok || !maySubmit();
    const jobs = imagined(told.jobs);
    const what = told.ok ? `Ready: ${jobs.length === 1 ? "one job" : `${jobs.length} jobs`} of ${jobs[0]?.gpus ?? 1} ${(jobs[0]?.gpus ?? 1) === 1 ? "GPU" : "GPUs"}.` : "";
    this.ready.textContent = what;
    if (told.ok) this.lookDue = setTimeout(() => this.look(jobs, what, signal), LOOK_MS);
  }

  /** Says when it would start, if it were submitted now. */
  async look(jobs, what, signal) {
    const told = await attempt(() => call("POST", "/v1/what-if", { body: { jobs }, signal }), () => undefined);
    if (!told || signal.aborted) return;
    const [first] = told.new;
    const start = startOf(first, told.now_s);
    const soon = start && first.start_in_s < 1;
    this.ready.textContent = `${what} ${soon ? "It would start at once." : start ? `It would start ${start.full}.` : `It would not start as things are now${first.why ? `: ${first.why}` : ""}.`}`;
  }

  async submit() {
    if (this.button.disabled || !this.told?.ok) return;
    this.button.disabled = true;
    const key = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    const bodies = this.told.jobs;
    const told = await attempt(() => call("POST", "/v1/jobs", { body: bodies.length === 1 ? bodies[0] : bodies, headers: { "Idempotency-Key": key } }), (error) => {
      announce(error.message, true);
      this.button.disabled = false;
    });
    if (!told) return;
    const { cwd } = this.terms.read();
    if (cwd) localStorage.setItem("fairway-cwd", cwd);
    kept.texts[kept.kind] = "";
    const [{ id }] = told.jobs;
    announce(told.jobs.length === 1 ? `job ${id} submitted` : `${told.jobs.length} jobs submitted`);
    location.hash = `#/job/${encodeURIComponent(told.jobs.length > 1 && id.includes("_") ? id.split("_")[0] : id)}`;
  }
}

/** Shows the form. */
export function show({ root, signal, ready }) {
  if (maySubmit()) new SubmitView(root, signal);
  else root.append(h("div", { class: "card notice" }, h("h1", {}, "Submit"), h("p", {}, "You may look here, but not submit: this session is read only.")));
  ready();
}
