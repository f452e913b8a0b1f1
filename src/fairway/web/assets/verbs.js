// What can be done to a job: when it is offered, what is asked before, and what is said after. As at the shell.

import { call } from "./api.js";
import { ask } from "./ask.js";
import { h } from "./dom.js";
import { duration } from "./numbers.js";
import { announce } from "./say.js";
import { mayControl } from "./session.js";
import { hasEnded } from "./states.js";
import { refresh } from "./store.js";

const MOST_PRIORITY = 1_000_000;
const called = (job) => `${job.tasks ? `all ${job.tasks.toLocaleString("en")} tasks of array` : "job"} ${job.id}${job.name ? ` (${job.name})` : ""}`;
const grace = (job) => duration(job.request?.grace_s ?? 60);
/** A job that saves on request, or that has a checkpoint, loses nothing that matters. */
const saves = (job) => job.preempt === "checkpoint" || Boolean(job.progress?.checkpoint);
const fromStep = (step) => `from its checkpoint at step ${Math.round(step).toLocaleString("en")}`;
/** What happens to the work of a job that is stopped. Of an array's tasks it is not known here what they have saved. */
const workLine = (job, lost) => {
  if (job.preempt === "checkpoint") return job.tasks ? "Each saves its state first, and continues from there." : "It saves its state first, and continues from there.";
  if (job.tasks) return "Each continues from its last checkpoint; one that has saved nothing starts from the beginning.";
  return saves(job) ? `It continues ${fromStep(job.progress.checkpoint_step)}.` : `It has saved nothing${lost}`;
};
/** What happens to the work of a job that is suspended. */
const suspendLine = (job) => {
  if (job.preempt !== "suspend") return workLine(job, ": it starts from the beginning.");
  return job.tasks ? "Their processes stay in memory, and continue where they were." : "Its processes stay in memory, and continue where they were.";
};
const requeuedLine = (row) => {
  if (row.from_the_beginning) return `${stateLine(row)}; it has saved nothing and starts from the beginning`;
  return `${stateLine(row)}${row.from_step === null ? "" : `; it continues ${fromStep(row.from_step)}`}`;
};
const stateLine = (row) => `job ${row.id} is ${row.state.toLowerCase().replaceAll("_", " ")}${row.reason && row.reason.toUpperCase() !== row.state ? `: ${row.reason}` : ""}`;
const endedLine = (row) => `job ${row.id} had ended before: ${row.state.toLowerCase().replaceAll("_", " ")}`;
const releasedLine = (row) => {
  if (hasEnded(row.state) || row.state === "RUNNING") return stateLine(row);
  return `job ${row.id} ${row.attempts ? "goes on" : "starts"} when it is its turn${row.reason && row.state !== "PREEMPTED" ? `: ${row.reason}` : ""}`;
};

/** Each verb: whether it makes sense for a job, the question, and the line after it. */
const VERBS = [
  {
    verb: "suspend", label: "Suspend", fits: (job) => !hasEnded(job.state) && !job.suspended && job.state === "RUNNING",
    lines: (job) => ["It leaves its GPUs until it is resumed.", suspendLine(job)],
  },
  { verb: "resume", label: "Resume", fits: (job) => !hasEnded(job.state) && Boolean(job.suspended), lines: () => ["It goes on when it is its turn."], told: releasedLine },
  {
    verb: "hold", label: "Hold", fits: (job) => !hasEnded(job.state) && !job.held && !job.suspended,
    lines: (job) => [job.state === "RUNNING" ? "It keeps running, but is not started again until it is released." : "It is not started until it is released."],
    told: (row) => (hasEnded(row.state) || row.reason.startsWith("held") ? stateLine(row) : `job ${row.id} is held`),
  },
  { verb: "release", label: "Release", fits: (job) => !hasEnded(job.state) && Boolean(job.held), lines: () => ["It runs when it is its turn."], told: releasedLine },
  {
    verb: "requeue", label: "Requeue", fits: (job) => job.state === "RUNNING", danger: (job) => !saves(job),
    lines: (job) => ["It is stopped and put back in the queue.", workLine(job, " and starts from the beginning: the work so far is lost.")],
    told: requeuedLine,
  },
  { verb: "priority", label: "Priority", fits: (job) => !hasEnded(job.state) },
  {
    verb: "cancel", label: "Cancel", fits: (job) => !hasEnded(job.state), danger: () => true,
    lines: (job) => [job.state === "RUNNING" ? `Its processes are asked to stop, and killed after ${grace(job)}.` : "It leaves the queue.", "This cannot be taken back."],
    told: (row) => {
      if (row.had_ended || !["PENDING", "RUNNING", "SUSPENDED", "PREEMPTED", "CANCELLED"].includes(row.state)) return endedLine(row);
      return `${stateLine(row)}${row.stopping_s ? `; its processes have up to ${duration(row.stopping_s)} to stop` : ""}`;
    },
  },
];

async function done(id, request, told) {
  try {
    const { jobs } = await request;
    for (const row of jobs.slice(0, 4)) announce(row.had_ended ? endedLine(row) : told(row));
    if (jobs.length > 4) announce(`and ${jobs.length - 4} more`);
    await refresh(jobs.map((row) => row.id).slice(0, 500));
    return true;
  } catch (error) {
    announce(error.message, true);
    return false;
  }
}

const path = (job) => `/v1/jobs/${encodeURIComponent(job.id)}`;

async function setPriority(job) {
  const input = h("input", { type: "number", step: 1, min: -MOST_PRIORITY, max: MOST_PRIORITY, value: job.priority ?? 0, name: "priority" });
  const asked = await ask({
    title: `Priority of ${called(job)}`, lines: ["Higher is served first; negative is opportunistic: it gives way to all others."],
    fields: [h("label", {}, "priority", input)], yes: "Set", read: () => input.valueAsNumber,
  });
  if (asked === undefined) return false;
  if (!Number.isInteger(asked)) { announce("priority: must be a whole number", true); return false; }
  return done(job.id, call("PATCH", path(job), { body: { priority: asked } }), (row) => `job ${row.id} updated: priority ${row.priority}`);
}

async function act(one, job) {
  if (one.verb === "priority") return setPriority(job);
  const danger = one.danger?.(job) ?? false;
  const yes = await ask({ title: `${one.label} ${called(job)}?`, lines: one.lines(job), yes: one.label, danger });
  if (!yes) return false;
  return done(job.id, call("POST", `${path(job)}/${one.verb}`), one.told || stateLine);
}

/** Buttons for what this user may do to a job now; `acted` is told when something was done. `current()` is the job by then. */
export function verbButtons(job, acted, current = () => job) {
  if (!mayControl(job.user)) return [];
  return VERBS.filter(({ fits }) => fits(job)).map((one) => h("button", {
    "type": "button", "class": "plain", "data-verb": one.verb,
    "onclick": async () => { if (await act(one, current())) acted(); },
  }, one.label));
}
