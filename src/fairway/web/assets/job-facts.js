// All that is known about a job in words: why, when, its terms, its attempts, and what happened to it.

import { moment, when } from "./clock.js";
import { h } from "./dom.js";
import { ROUGH, finishOf, range, startOf } from "./expected.js";
import { duration, plain } from "./numbers.js";
import { hasEnded, stateText } from "./states.js";
import { forecastOf, now_s } from "./store.js";
import { card, facts, jobLink } from "./table.js";

const several = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

/** 2, 0.5, 1–4, 2 of 1–4. */
function gpusText(job) {
  const asked = job.gpus_min === job.gpus_max ? plain(job.gpus * (job.gpu_share ?? 1), 4) : `${job.gpus_min}–${job.gpus_max}`;
  const types = job.request.gpu_types?.length ? ` of ${job.request.gpu_types.join(" or ")}` : "";
  const held = job.gpus_held && job.gpus_min !== job.gpus_max ? `${job.gpus_held} of ${asked}` : asked;
  return `${held}${types}${job.request.processes === "per_gpu" ? " · a process per GPU" : ""}`;
}

function commandText(job) {
  if (job.private) return h("span", { class: "soft" }, "private");
  const quote = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
  return h("code", {}, job.request.shown || job.request.command?.map(quote).join(" ") || job.command);
}

function progressText({ progress, step, steps }) {
  if (!progress.reported_s) return "";
  const unit = progress.unit || "step";
  const parts = [`${unit} ${Math.round(step).toLocaleString("en")}${steps ? ` of ${Math.round(steps).toLocaleString("en")}` : ""}`];
  if (progress.steps_per_s) parts.push(`${plain(progress.steps_per_s)} ${unit === "percent" ? unit : `${unit}s`}/s`);
  if (progress.loss !== null && progress.loss !== undefined) parts.push(`loss ${plain(progress.loss, 4)}`);
  if (progress.batch_size) parts.push(`batch size ${progress.batch_size.toLocaleString("en")}`);
  if (progress.source) parts.push(`read off its ${progress.source}`);
  return parts.join(" · ");
}

function checkpointText({ progress }) {
  if (!progress.checkpoint) return "";
  const at = progress.checkpoint_s ? `, ${duration(Math.max(0, now_s() - progress.checkpoint_s))} ago` : "";
  return `step ${Math.round(progress.checkpoint_step).toLocaleString("en")}${at}: ${progress.checkpoint}`;
}

const environment = (env) => env && h("details", {}, h("summary", {}, several(Object.keys(env).length, "variable")), h("pre", { class: "env" }, Object.entries(env).map(([name, value]) => `${name}=${value}\n`).join("")));

/** The terms of a job. */
export function termsCard(job) {
  const { request } = job;
  const depends = (request.depends || []).flatMap(({ kind, job: other }, at) => [at ? ", " : "", `${kind} `, jobLink(other)]);
  const preempt = request.preempt ?? "suspend";
  return card("Terms", "", facts([
    ["command", commandText(job)],
    ["directory", job.private ? "" : request.cwd],
    ["GPUs", gpusText(job)],
    ["progress", progressText(job)],
    ["checkpoint", checkpointText(job)],
    ["submitted", moment(job.submitted_s)],
    ["started", job.started_s ? moment(job.started_s) : ""],
    ["ended", job.ended_s ? moment(job.ended_s) : ""],
    ["ran", job.started_s ? `${duration(job.ran_s)} · GPU time ${duration(job.gpu_s)}` : ""],
    ["preempted", `${several(job.preemptions, "time")} · ${preempt === "never" ? "never allowed" : `by ${preempt}`}`],
    ["priority", job.priority || ""],
    ["weight", request.weight && request.weight !== 1 ? request.weight : ""],
    ["time limit", request.limit_s ? duration(request.limit_s) : ""],
    ["expected", request.expected_s ? duration(request.expected_s) : ""],
    ["deadline", request.deadline_s ? moment(job.submitted_s + request.deadline_s) : ""],
    ["not before", request.begin_s ? moment(request.begin_s) : ""],
    ["grace period", request.grace_s !== undefined ? duration(request.grace_s) : ""],
    ["retries", request.retries || ""],
    ["waits for", depends.length ? h("span", {}, depends) : ""],
    ["exit code", job.exit_code],
    ["environment", environment(request.env)],
  ]));
}

/** How a job was tried, each time. */
export function attemptsCard(job) {
  if (!job.history.length) return null;
  const lasted = (one) => Math.max(0, (one.ended_s ?? now_s()) - (one.started_s ?? one.launched_s));
  const rows = [...job.history].reverse().map((one) => h("tr", {},
    h("th", { scope: "row" }, one.number), h("td", {}, one.where), h("td", {}, when(one.started_s ?? one.launched_s, now_s())),
    h("td", { class: "right" }, duration(lasted(one))), h("td", {}, [one.cause, one.codes.length ? `exit ${[...new Set(one.codes)].join(" ")}` : one.ended_s ? "" : "runs"].filter(Boolean).join(" · "))));
  const heads = ["#", "where", "started", "lasted", "ended by"].map((name, at) => h("th", { scope: "col", class: at === 3 ? "right" : "" }, name));
  return card("Attempts", "", h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Attempts" }, h("table", { class: "data" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows))));
}

/** What happened to a job, the latest first. */
export function eventsCard(told) {
  const items = [...told.events].reverse().map(({ time_s: at, what, text }) => h("li", { "data-what": what }, h("time", { title: moment(at) }, when(at, now_s())), h("span", {}, text || what)));
  return card("Events", "", items.length ? h("ol", { class: "events" }, items) : h("p", { class: "soft" }, "Nothing has happened yet."));
}

/** One sentence about the start or the end that is expected, and where the estimate comes from. */
function expectation(job, why) {
  if (hasEnded(job.state)) return [];
  const now = now_s();
  const running = job.state === "RUNNING";
  const estimate = why?.estimate || {};
  const told = forecastOf(job.id) || estimate;
  const own = running ? finishOf(estimate, now) : startOf(estimate, now);
  const start = running ? null : own?.spread ? own : startOf(told, now) || own;
  const finish = running && own?.spread ? own : finishOf(told, now) || (running ? own : null);
  const never = !running && !start ? (estimate.cut ? `not within ${duration(estimate.looked_s)}` : why?.estimate || forecastOf(job.id) ? "not foreseen as things are now" : "") : "";
  return [
    ["starts", start ? h("b", {}, start.full) : never],
    ["ends", finish ? h("b", {}, finish.full) : ""],
  ];
}

function runTime({ estimate }) {
  if (!estimate?.expected_s) return "";
  const span = estimate.sure ? `, ${Math.round(estimate.sure * 100)} % sure between ${duration(estimate.low_s)} and ${duration(estimate.high_s)}` : ` (${ROUGH})`;
  return `about ${duration(estimate.expected_s)} in all${span}`;
}

/** The last start and the last end that somebody was told, and whether that was right. */
function toldText({ promises = [] }) {
  const now = now_s();
  const last = ["start", "finish"].map((kind) => promises.findLast((one) => one.kind === kind)).filter(Boolean);
  return last.map(({ kind, told_s: at, point_s: point, between_s: between, verdict }) => h("div", { "data-told": kind },
    `at ${when(at, now)}: ${kind === "start" ? "starts" : "ends"} ${when(point, now)} (${between ? range(between, now) : ROUGH}) — ${verdict}`));
}

const freed = ({ id, what, in_s: left, gpus, command }) => [id ? ["job ", jobLink(id), " "] : "", what, left === null || left === undefined ? "" : ` in ${duration(left)}`, gpus ? ` (${several(gpus, "GPU")})` : "", command ? `: ${command}` : ""].flat();

function aheadOf(why) {
  const byReason = new Map();
  for (const { id, why: reason } of why.ahead || []) byReason.set(reason, [...(byReason.get(reason) || []), id]);
  const lines = [...byReason].map(([reason, ids]) => h("div", {}, ids.flatMap((id, at) => [at ? ", " : "", jobLink(id)]), ` ${reason}`));
  return why.more_ahead ? [...lines, h("div", {}, `and ${why.more_ahead.toLocaleString("en")} more`)] : lines;
}

/** Why a job is where it is, and when it gets further. */
export function whyCard(job, why) {
  const ended = hasEnded(job.state);
  // The answer to why takes longer: it may be about the state that the job had before.
  const reason = (why?.state === job.state && why.reason) || job.reason || (job.state === "COMPLETED" ? "it has done its work" : "");
  const ahead = why ? aheadOf(why) : [];
  const frees = (why?.frees || []).map((one) => h("div", {}, freed(one)));
  const told = toldText(job);
  const basis = job.estimate?.source || why?.estimate?.basis;
  return card(ended ? "How it ended" : "Why and when", why ? h("span", { class: "soft" }, `policy ${why.policy}`) : "", facts([
    [ended ? stateText(job.state) : "why", reason],
    ...expectation(job, why),
    ["told", told.length ? h("div", {}, told) : ""],
    ["waited", ended ? duration(Math.max(0, job.ended_s - job.submitted_s - job.ran_s)) : ""],
    ["ran", ended ? duration(job.ran_s) : ""],
    ["run time", ended ? "" : runTime(job)],
    ["estimated from", ended ? "" : basis],
    ["position", why?.position ? `${why.position.toLocaleString("en")} of ${(why.waiting ?? why.position).toLocaleString("en")}` : ""],
    ["ahead of it", ahead.length ? h("div", {}, ahead) : ""],
    ["would free it", frees.length ? h("div", {}, frees) : ""],
    ["note", [why?.estimate?.cut, why?.estimate?.note].filter(Boolean).join("; ")],
  ]));
}
