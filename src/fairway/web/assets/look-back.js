// What would have been: the jobs of the last days under other policies, beside what really happened.

import { call } from "./api.js";
import { moment } from "./clock.js";
import { asker, field, gpuFields } from "./conditions.js";
import { h } from "./dom.js";
import { duration, percent, plain } from "./numbers.js";
import { card, sortedTable } from "./table.js";

const FIRST = ["fifo", "backfill", "las", "srtf", "max_min_fairness", "pollux"];
const DAYS = [1, 3, 7, 14, 30, 90];
const share = (value) => (value === null ? "–" : percent(value));
const count = (value) => (value === null ? "–" : Math.round(value).toLocaleString("en"));
const number = (value) => (value === null ? "–" : plain(value));
/** Columns as `fairway compare` has them; `better` is 1 where more is better. */
const COLUMNS = [
  { key: "jct_mean_s", label: "Mean JCT", say: duration, better: -1, title: "from submission to completion, mean over finished jobs" },
  { key: "jct_p50_s", label: "p50", say: duration, better: -1, title: "median completion time" },
  { key: "jct_p99_s", label: "p99", say: duration, better: -1, title: "99 % of finished jobs took no longer" },
  { key: "queue_mean_s", label: "Mean queueing", say: duration, better: -1, title: "time a job was in the system and not running, mean" },
  { key: "makespan_s", label: "Makespan", say: duration, better: -1, title: "from the first submission to the last completion" },
  { key: "utilisation", label: "Utilised", say: share, better: 1, title: "busy GPU time over available GPU time" },
  { key: "preemptions", label: "Preempted", say: count, better: -1, title: "times a running job was stopped for another" },
  { key: "ftf_static_worst", label: "Worst ρ", say: number, better: -1, title: "largest static finish-time fairness" },
  { key: "ftf_static_unfair_fraction", label: "Unfair", say: share, better: -1, title: "share of jobs with static ρ > 1.05" },
  { key: "finished", label: "Finished", say: count, better: 1, title: "jobs that completed" },
];

function bestOf(rows, { key, better }) {
  const values = rows.map((row) => row[key]).filter((value) => value !== null && value !== undefined);
  const best = values.length > 1 ? Math[better > 0 ? "max" : "min"](...values) : null;
  return best === Math[better > 0 ? "min" : "max"](...values) ? null : best;
}

function policiesTable(told) {
  const actual = { ...told.actual, actual: true };
  const rows = [actual, ...told.rows];
  const used = COLUMNS.filter(({ key }) => rows.some((row) => row[key] !== null && row[key] !== undefined));
  const columns = [
    { label: "Policy", value: (row) => row.policy, cell: (row) => (row.actual ? [h("b", {}, "what happened"), ` ${(row.policy ?? "").replace(/^actual\s*/, "")}`] : row.policy) },
    ...used.map((column) => {
      const best = bestOf(rows, column);
      const cell = (row) => h("span", { class: row[column.key] === best ? "best" : "" }, row[column.key] === undefined ? "–" : column.say(row[column.key]));
      return { label: column.label, title: column.title, value: (row) => row[column.key], cell, right: true };
    }),
  ];
  return sortedTable({ name: "Policies", columns, rows: told.rows, first: [actual], sort: 1, mark: (row) => ({ "data-policy": row.actual ? "actual" : row.policy, "class": row.actual ? "actual" : "" }) });
}

function usersTable(told) {
  const rows = [{ policy: "what happened", users: told.actual.users }, ...told.rows];
  const users = [...new Set(rows.flatMap((row) => Object.keys(row.users || {})))];
  const mean = (row, user) => row.users?.[user]?.jct_mean_s ?? null;
  const columns = [
    { label: "User", value: (user) => user, cell: (user) => user || "(none)" },
    { label: "Jobs", value: (user) => rows[0].users?.[user]?.jobs, cell: (user) => count(rows[0].users?.[user]?.jobs ?? null), right: true },
    ...rows.map((row) => ({ label: row.policy, value: (user) => mean(row, user), cell: (user) => duration(mean(row, user)), right: true })),
  ];
  return users.length ? sortedTable({ name: "Mean completion time of each user", columns, rows: users, sort: 1, down: true }) : null;
}

function answer(told) {
  const notes = [
    told.left_out ? `${count(told.left_out)} jobs are left out${told.left_out_why ? ` (${Object.entries(told.left_out_why).map(([why, jobs]) => `${why}: ${jobs}`).join(", ")})` : ""}` : "",
    told.damaged ? `${count(told.damaged)} rows of the journal are damaged and were skipped` : "",
    ...(told.notes || []), ...Object.entries(told.problems || {}).map(([policy, why]) => (typeof why === "string" ? `${policy}: ${why}` : String(policy))),
  ].filter(Boolean);
  const users = usersTable(told);
  return [
    h("p", { class: "answer" }, told.verdict || `${count(told.jobs)} jobs from ${moment(told.from_s)} to ${moment(told.to_s)}.`),
    told.verdict && h("p", { class: "soft" }, `${count(told.jobs)} jobs from ${moment(told.from_s)} to ${moment(told.to_s)}.`),
    notes.length ? h("p", { class: "problem" }, notes.join("; ")) : null,
    told.jobs === 0 ? h("p", { class: "soft" }, "No job has ended in that time.") : policiesTable(told),
    users && h("h3", {}, "Mean completion time of each user"), users,
  ].filter(Boolean);
}

/** A card that asks what would have been, and shows the answer. */
export function back(policy, gpus, signal, askedDays) {
  const days = h("select", { name: "days" }, DAYS.map((one) => h("option", { value: one, selected: String(one) === (askedDays ?? "7") }, `${one} ${one === 1 ? "day" : "days"}`)));
  const cluster = gpuFields(gpus);
  const chosen = new Set([...FIRST.filter((name) => policy.known.includes(name)), policy.name]);
  const boxes = policy.known.map((name) => h("label", { class: "check" }, h("input", { type: "checkbox", value: name, checked: chosen.has(name) }), ` ${name}`));
  const result = h("div", { class: "result", "aria-live": "polite" });
  const ask = asker("Replay", async () => {
    const policies = boxes.map((box) => box.firstChild).filter((box) => box.checked).map((box) => box.value);
    if (!policies.length) throw new Error("choose at least one policy");
    const told = await call("POST", "/v1/history/replay", { body: { days: Number(days.value), policies, cluster_gpus: cluster.read() }, signal });
    result.replaceChildren(...answer(told));
    result.dataset.answered = "1";
  });
  return card("What would have been", h("code", { class: "soft" }, "fairway compare --history 7d"),
    h("div", { class: "fields" }, field("the last", days), cluster.nodes),
    h("fieldset", { class: "checks" }, h("legend", {}, "policies"), boxes), ask, result);
}
