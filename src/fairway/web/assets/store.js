// All jobs that the page knows. Events change rows at once; what they do not say is asked for once a second at most, in one
// request. While nobody looks at the page it asks for nothing.

import { get } from "./api.js";
import { hear, tell } from "./bus.js";
import { rowsOf } from "./job-rows.js";
import { readEvents } from "./stream.js";
import { groupOf } from "./states.js";

const PAUSE_MS = 1000;
const MOST_AT_ONCE = 500;
const TOO_MANY = 2000;
const FORECAST_MS = 4_000;
const IDLE_MS = 60_000;
const MOST_LOOKS = 10;
const SILENCE_MS = 45_000;
/** Events that only say how fast a job is. There are many of them, so only rows on the screen are asked for. */
const MINOR = new Set(["RateChanged", "JobMeasured", "RegimeEntered", "RestartMeasured", "Throttle", "SetBatch", "TasksChanged", "SetQueues"]);
const ENDS = new Set(["JobFinished", "JobFailed", "JobCancelled"]);

/** @type {Map<string, object>} */
const jobs = new Map();
const state = { loaded: false, event: null, ahead_s: 0, left_out: 0, counts: {}, forecast: null, status: null };
const changed = new Set();
const stale = new Set();
let onScreen = () => [];
let streaming = null;
/** Counts the events by which GPUs may have changed hands. */
let epoch = 0;
let flushing = 0;
let flushed = 0;
let forecastDue = false;
let forecastAsked = 0;
let lookTimer = 0;
let looks = 0;
/** The last event that a forecast has to know. */
let toKnow = null;

/** All rows, in no order. */
export const allJobs = () => jobs.values();
/** One row. */
export const jobOf = (id) => jobs.get(id);
/** Whether the first list has come, how many ended jobs are not in it, and so on. */
export const known = () => state;
/** The time by the scheduler's clock, in seconds since 1970. */
export const now_s = () => Date.now() / 1000 + state.ahead_s;
/** What the forecast says about a job. */
export const forecastOf = (id) => state.forecast?.jobs?.[id];
/** How long a job has run until now. */
export const ran_s = (row) => (row.state === "RUNNING" ? row.ran_s + Math.max(0, now_s() - row.seen_s) : row.ran_s);
/** The view says how to know which rows are on the screen. */
export const watch = (ids) => { onScreen = ids; soon(); };
/** Other rows are on the screen now. */
export const scrolled = () => soon();

function take(told) {
  state.ahead_s = told.now_s - Date.now() / 1000;
  state.counts = told.counts || state.counts;
  state.left_out = told.left_out ?? state.left_out;
  const rows = rowsOf(told);
  for (const row of rows) {
    row.epoch = epoch;
    jobs.set(row.id, row);
  }
  return rows;
}

/** Fetches everything. */
async function load() {
  const told = await get("/v1/page/jobs");
  jobs.clear();
  changed.clear();
  stale.clear();
  take(told);
  state.event = told.event;
  toKnow = told.event;
  state.loaded = true;
  tell("change");
}

/** Fetches some rows now; those that are gone are dropped. */
export async function refresh(ids) {
  const told = await get(`/v1/page/jobs?${ids.map((id) => `id=${encodeURIComponent(id)}`).join("&")}`);
  const found = new Set(take(told).map((row) => row.id));
  for (const id of ids) if (!found.has(id)) jobs.delete(id);
  tell("change");
}

function apply(event) {
  state.event = event.id;
  if (event.event === "Gap") { load().catch(() => {}); return; }
  if (event.job === undefined) { tell("nodes"); epoch += 1; soon(); return; }
  const row = jobs.get(event.job);
  if (row && MINOR.has(event.event)) { stale.add(event.job); tell("job", event); soon(); return; }
  if (row) {
    row.state = event.state;
    row.find = "";
    if (event.event === "JobStarted") row.started_s ??= event.time_s;
    if (ENDS.has(event.event)) row.ended_s ??= event.time_s;
    if (event.state !== "RUNNING") row.gpus_held = 0;
    else if (Array.isArray(event.gpus)) row.gpus_held = event.gpus.length;
  }
  changed.add(event.job);
  epoch += 1;
  forecastDue = true;
  looks = 0;
  toKnow = event.id;
  tell("job", event);
  tell("change");
  soon();
}

/** Whether a row may be older than what is known elsewhere. When GPUs change hands, others may wait for another reason. */
const isStale = (row) => row !== undefined && (stale.has(row.id) || (row.epoch < epoch && groupOf(row.state) === "waiting"));

function soon() {
  if (flushing || document.hidden) return;
  flushing = setTimeout(flush, Math.max(0, flushed + PAUSE_MS - Date.now()));
}

async function flush() {
  flushed = Date.now();
  const ids = new Set([...changed].slice(0, MOST_AT_ONCE));
  for (const id of onScreen()) if (ids.size < MOST_AT_ONCE && isStale(jobs.get(id))) ids.add(id);
  try {
    if (changed.size > TOO_MANY) await load();
    else if (ids.size) {
      for (const id of ids) { changed.delete(id); stale.delete(id); }
      await refresh([...ids]);
    }
  } catch (error) {
    // The stream notices that the scheduler is gone, and everything is fetched again when it is back.
  }
  flushing = 0;
  if (changed.size) soon();
  if (forecastDue) look();
}

/** Whether an event came with another one or after it. Ids have the run of the scheduler and a number. */
function knows(event, other) {
  const [[run, at], [otherRun, otherAt]] = [event.split("-"), (other ?? event).split("-")];
  return run === otherRun && Number(at) >= Number(otherAt);
}

/** Asks for the forecast, with a pause after the last time; again a few times while it is older than the last event. */
function look() {
  if (lookTimer || document.hidden) return;
  lookTimer = setTimeout(async () => {
    lookTimer = 0;
    if (document.hidden || !streaming) return;
    forecastDue = false;
    forecastAsked = Date.now();
    try {
      await lookAtStatus();
      const told = await get("/v1/forecast");
      const old = told.made_s === null || !knows(told.event, toKnow);
      if (told.made_s === null) forecastAsked = Date.now() - FORECAST_MS + 2000;
      else if (told.made_s !== state.forecast?.made_s) {
        state.forecast = told;
        tell("change");
        tell("forecast");
      }
      looks = old ? looks + 1 : 0;
      if (old && looks < MOST_LOOKS) look();
    } catch (error) {
      // A scheduler that cannot make a forecast still has a queue.
    }
  }, Math.max(0, forecastAsked + FORECAST_MS - Date.now()));
}

async function lookAtStatus() {
  state.status = await get("/v1/status");
  tell("change");
}

function idle() {
  if (document.hidden || !streaming) return;
  look();
}

async function follow() {
  if (streaming || document.hidden) return;
  const mine = new AbortController();
  streaming = mine;
  let heard = Date.now();
  const guard = setInterval(() => { if (Date.now() - heard > SILENCE_MS) mine.abort(); }, 5000);
  const path = state.event ? `/v1/events?last=${encodeURIComponent(state.event)}` : "/v1/events";
  try {
    await readEvents(path, apply, () => { heard = Date.now(); }, mine.signal);
  } catch (error) {
    if (error.status === 401) streaming = null;
  }
  clearInterval(guard);
  if (streaming !== mine) return;
  streaming = null;
  if (!document.hidden) tell("lost");
}

/** Stops to follow. */
export function stop() {
  streaming?.abort();
  streaming = null;
}

/** Loads everything and follows it. */
export async function start() {
  await load();
  follow();
  idle();
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) stop();
  else if (state.loaded) { follow(); soon(); idle(); }
});
setInterval(idle, IDLE_MS);
hear("who", () => stop());
