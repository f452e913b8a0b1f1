// From now on: another policy, another number of GPUs, a job to add. The difference for each user and job, side by side.

import { call } from "./api.js";
import { when } from "./clock.js";
import { asker, difference, field, gained, gpuFields } from "./conditions.js";
import { h } from "./dom.js";
import { ROUGH, finishOf, startOf } from "./expected.js";
import { duration } from "./numbers.js";
import { durationOf } from "./quantities.js";
import { jobOf } from "./store.js";
import { card, jobLink, sortedTable } from "./table.js";

const MOST_NEW = 1000;
const count = (number) => (number === null || number === undefined ? "–" : number.toLocaleString("en"));

const signed = (by) => (by === 0 ? h("span", { class: "soft" }, "same") : `${by < 0 ? "−" : "+"}${count(Math.abs(by))}`);

function figures(told) {
  const now = told.otherwise;
  const rows = [
    { name: "mean completion time", key: "mean_jct_s", say: duration, times: true }, { name: "all done in", key: "all_done_in_s", say: duration, times: true },
    { name: "preemptions", key: "preemptions", say: count }, { name: "done within the forecast", key: "finished", say: count },
    { name: "not done within it", key: "not_finished", say: count }, { name: "never start, as things are", key: "never_start", say: count },
  ];
  const heads = ["", ...(now ? [`as now (${now.policy})`] : []), told.policy + (told.cluster_gpus ? `, ${Object.entries(told.cluster_gpus).map(([type, gpus]) => `${gpus} ${type}`).join(", ")}` : ""), ...(now ? ["difference"] : [])];
  return h("div", { class: "scroll" }, h("table", { class: "data" }, h("caption", { class: "sr" }, "All jobs"),
    h("thead", {}, h("tr", {}, heads.map((name, at) => h("th", { scope: "col", class: at ? "right" : "" }, name)))),
    h("tbody", {}, rows.map(({ name, key, say, times }) => h("tr", {}, h("th", { scope: "row" }, name), now && h("td", { class: "right" }, say(now[key])), h("td", { class: "right" }, say(told[key])),
      now && h("td", { class: "right" }, times ? difference(told[key], now[key]) : signed((told[key] ?? 0) - (now[key] ?? 0))))))));
}

function usersTable(told) {
  const columns = [
    { label: "User", value: (row) => row.user, cell: (row) => row.user },
    { label: "Jobs", value: (row) => row.jobs, cell: (row) => count(row.jobs), right: true },
    { label: "Mean JCT as now", value: (row) => row.otherwise_mean_jct_s, cell: (row) => duration(row.otherwise_mean_jct_s), right: true },
    { label: "then", value: (row) => row.mean_jct_s, cell: (row) => duration(row.mean_jct_s), right: true },
    { label: "Difference", value: (row) => gained(row.mean_jct_s, row.otherwise_mean_jct_s), cell: (row) => difference(row.mean_jct_s, row.otherwise_mean_jct_s), right: true },
  ];
  return sortedTable({ name: "Users", columns, rows: told.users, sort: 4, mark: (row) => ({ "data-user": row.user }) });
}

function jobsTable(told) {
  const at = (seconds, state) => (seconds === null || seconds === undefined ? (state === "RUNNING" ? "runs" : "–") : when(seconds, told.now_s));
  const rough = (kind) => (told.jobs.some((row) => row[`${kind}_rough`]) ? ` (${ROUGH})` : "");
  const columns = [
    { label: "Job", value: (row) => Number(row.id.split("_")[0]), cell: (row) => [jobLink(row.id), " ", h("span", { class: "soft" }, jobOf(row.id)?.name ?? "")] },
    { label: "User", value: (row) => row.user, cell: (row) => row.user },
    { label: "GPUs", value: (row) => row.gpus, cell: (row) => String(row.gpus), right: true },
    { label: `Starts as now${rough("start")}`, value: (row) => row.otherwise?.start_s, cell: (row) => at(row.otherwise?.start_s, row.state), right: true },
    { label: "then", value: (row) => row.start_s, cell: (row) => at(row.start_s, row.state), right: true },
    { label: `Ends as now${rough("finish")}`, value: (row) => row.otherwise?.finish_s, cell: (row) => at(row.otherwise?.finish_s), right: true },
    { label: "then", value: (row) => row.finish_s, cell: (row) => at(row.finish_s), right: true },
    { label: "Difference", value: (row) => gained(row.finish_s, row.otherwise?.finish_s), cell: (row) => difference(row.finish_s, row.otherwise?.finish_s), right: true },
    { label: "Preempted", value: (row) => row.preemptions, cell: (row) => (row.preemptions ? count(row.preemptions) : ""), right: true },
    { label: "Estimated from", value: (row) => row.basis, cell: (row) => h("span", { class: "soft" }, row.why || row.basis) },
  ];
  return sortedTable({ name: "Jobs", columns, rows: told.jobs, sort: 7, most: 100, mark: (row) => ({ "data-job": row.id }) });
}

function newJobs(told) {
  if (!told.new.length) return null;
  const [first] = told.new;
  const final = told.new.at(-1);
  const start = startOf(first, told.now_s);
  const end = finishOf(final, told.now_s);
  const many = told.new.length > 1;
  const text = start ? `${many ? "The first of the new jobs" : "The new job"} starts ${start.full}${end ? `; ${many ? "the last" : "it"} ends ${end.full}` : ""}.` : `The new job does not start within the forecast${first.why ? `: ${first.why}` : ""}.`;
  return h("p", { class: "answer" }, text);
}

function answer(told) {
  const notes = [told.cut, told.note, told.problem, told.left_out ? `${count(told.left_out)} jobs are left out` : ""].filter(Boolean);
  return [
    newJobs(told), notes.length ? h("p", { class: "problem" }, notes.join("; ")) : null,
    h("div", { class: "side" }, h("div", {}, h("h3", {}, "All jobs"), figures(told)), told.otherwise && told.users?.length ? h("div", {}, h("h3", {}, "Users"), usersTable(told)) : null),
    told.jobs.length ? [h("h3", {}, "Jobs"), jobsTable(told)] : h("p", { class: "soft" }, "No jobs wait or run."),
  ].flat().filter(Boolean);
}

function jobFields() {
  const add = h("input", { type: "checkbox", id: "add-job" });
  const gpus = h("input", { type: "number", min: 1, max: 4096, value: 1, name: "gpus" });
  const times = h("input", { type: "number", min: 1, max: MOST_NEW, value: 1, name: "times" });
  const lasts = h("input", { type: "text", value: "1h", name: "expected", size: 6 });
  const priority = h("input", { type: "number", value: 0, step: 1, name: "priority" });
  const fields = h("div", { class: "fields", hidden: true }, field("GPUs each", gpus), field("runs for", lasts), field("priority", priority), field("how many", times));
  add.addEventListener("change", () => { fields.hidden = !add.checked; });
  const read = () => {
    if (!add.checked) return undefined;
    const expected_s = durationOf(lasts.value);
    if (Number.isNaN(expected_s)) throw new Error("runs for: write 90, 30m, 2h or 1h30m");
    const job = { gpus: gpus.valueAsNumber || 1, expected_s, priority: priority.valueAsNumber || 0 };
    return Array.from({ length: Math.min(MOST_NEW, times.valueAsNumber || 1) }, () => job);
  };
  return { nodes: [h("label", { class: "check" }, add, " add jobs that are not submitted"), fields], read };
}

/** A card that asks what would come, and shows the answer. */
export function ahead(policy, gpus, signal) {
  const policies = h("select", { name: "policy" }, h("option", { value: "" }, `as now (${policy.policy})`), policy.known.map((name) => h("option", { value: name }, name)));
  const cluster = gpuFields(gpus);
  const job = jobFields();
  const result = h("div", { class: "result", "aria-live": "polite" });
  const ask = asker("Look ahead", async () => {
    const jobs = job.read();
    const body = { policy: policies.value || undefined, cluster_gpus: cluster.read(), jobs };
    const told = await call("POST", "/v1/what-if", { body, signal });
    result.replaceChildren(...answer(told));
    result.dataset.answered = "1";
  });
  return card("From now on", h("span", { class: "soft" }, "what comes, beside what would come"),
    h("div", { class: "fields" }, field("policy", policies), cluster.nodes), job.nodes, ask, result);
}
