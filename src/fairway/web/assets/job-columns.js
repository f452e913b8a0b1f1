// The columns of the list of jobs: what each shows, and by what it sorts.

import { when } from "./clock.js";
import { finishOf, startOf } from "./expected.js";
import { ago, duration } from "./numbers.js";
import { GROUPS, groupOf, stateText } from "./states.js";
import { forecastOf, now_s, ran_s } from "./store.js";

/** A number by which ids sort as people count: 9, 10, 10_2. */
const idOrder = (id) => {
  const [job, task] = id.split("_");
  return Number(job) + (task === undefined ? 0 : (Number(task) + 1) / 1e7);
};

const share = (row) => (row.steps ? Math.min(1, row.step / row.steps) : null);

/** What the forecast says about a job; about an array, of its task that comes next. */
const foreseen = (row) => forecastOf(row.lead ?? row.id);

/** When it starts, ends or ended: a word, a time, and how sure that is. */
export function whenOf(row) {
  const now = now_s();
  const group = groupOf(row.state);
  if (group === "ended") return { word: "ended", at: when(row.ended_s, now), spread: "", full: "" };
  const told = foreseen(row);
  const found = group === "running" ? finishOf(told, now) : startOf(told, now);
  const word = group === "running" ? "ends" : "starts";
  if (found) return { word, at: found.at, spread: found.spread, full: `${word} ${found.full}` };
  return { word: "", at: told ? "not foreseen" : "", spread: "", full: told?.why || "" };
}

const whenOrder = (row) => {
  const group = groupOf(row.state);
  if (group === "ended") return row.ended_s;
  const told = foreseen(row);
  return (group === "running" ? told?.finish_s : told?.start_s) ?? null;
};

/** Why a job is where it is; where there is no more to say than its state, what it is. */
const whyOf = (row) => (row.reason && row.reason.toUpperCase() !== row.state ? row.reason : row.command);

/** Columns: `order` is what they sort by, `text` what they show; the list itself writes those without `text`. */
export const COLUMNS = [
  { key: "id", label: "Job", order: (row) => idOrder(row.id) },
  { key: "state", label: "State", order: (row) => row.state },
  { key: "name", label: "Name", order: (row) => row.name, text: (row) => (row.tasks ? `${row.name || "array"} · ${row.tasks.toLocaleString("en")} tasks` : row.name) },
  { key: "user", label: "User", order: (row) => row.user, text: (row) => row.user },
  { key: "queue", label: "Queue", order: (row) => row.queue, text: (row) => row.queue },
  { key: "gpus", label: "GPUs", order: (row) => row.gpus, text: (row) => String(row.gpus_held || row.gpus), right: true },
  { key: "priority", label: "Prio", order: (row) => row.priority, text: (row) => (row.priority ? String(row.priority) : ""), right: true },
  { key: "age", label: "Age", order: (row) => -row.submitted_s, text: (row) => ago(now_s() - row.submitted_s), right: true },
  { key: "ran", label: "Ran", order: (row) => ran_s(row), text: (row) => (row.started_s && !row.tasks ? duration(Math.round(ran_s(row))) : ""), right: true },
  { key: "progress", label: "Progress", order: share, share, right: true },
  { key: "when", label: "Starts, ends", order: whenOrder },
  { key: "why", label: "Why or what", order: whyOf, text: whyOf },
];

/** Where there is no other order: what runs, what waits by its start, what has ended; the latest first. */
export function naturalOrder(a, b) {
  const group = GROUPS.indexOf(groupOf(a.state));
  const other = GROUPS.indexOf(groupOf(b.state));
  if (group !== other) return group - other;
  if (group === 0) return b.started_s - a.started_s || idOrder(b.id) - idOrder(a.id);
  if (group === 2) return b.ended_s - a.ended_s || idOrder(b.id) - idOrder(a.id);
  const [mine, theirs] = [foreseen(a)?.start_s ?? Infinity, foreseen(b)?.start_s ?? Infinity];
  if (mine !== theirs) return mine - theirs;
  return b.priority - a.priority || a.submitted_s - b.submitted_s;
}

/** An order by a column; what has no value comes last. */
export function orderBy(key, down) {
  const { order } = COLUMNS.find((column) => column.key === key);
  const sign = down ? -1 : 1;
  return (rows) => rows
    .map((row) => [order(row), row])
    .sort(([a, one], [b, other]) => {
      if (a === b) return idOrder(other.id) - idOrder(one.id);
      if (a === null || a === "") return 1;
      if (b === null || b === "") return -1;
      return (a < b ? -1 : 1) * sign;
    })
    .map(([, row]) => row);
}

/** The text in which a search looks. */
export function searched(row) {
  row.find ||= `${row.id} ${row.name} ${row.user} ${row.queue} ${stateText(row.state)} ${row.reason} ${row.command}`.toLowerCase();
  return row.find;
}
