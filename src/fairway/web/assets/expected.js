// When something will happen, and how sure that is.

import { second, when } from "./clock.js";

const sameDay = (a, b) => new Date(a * 1000).toDateString() === new Date(b * 1000).toDateString();

/** 14:05–15:00; the day is said twice only where it differs, and seconds only within a minute. */
export function range([low, high], now) {
  const [from, to] = [when(low, now), when(high, now)];
  if (from === to) return `${second(low)}–${second(high).slice(-2)}`;
  return `${from}–${sameDay(low, high) ? to.split(" ").pop() : to}`;
}

/** Said of a time, or of a run time, that has no interval. */
export const ROUGH = "rough";

const sureOf = (sure) => `${Math.round(sure * 100)} %`;

/**
 * A date that is only expected: `at` in short, `spread` for beside it, and `full` as a sentence would have it. It is
 * rough where the scheduler gives no interval, because too few of its intervals held before.
 */
function expected(forecast, kind, now) {
  const at_s = forecast[`${kind}_s`];
  if (at_s === null || at_s === undefined) return null;
  const at = when(at_s, now);
  const between = forecast[`${kind}_between_s`];
  if (!between) return forecast[`${kind}_rough`] ? { at, spread: ROUGH, full: `about ${at} (${ROUGH})` } : { at, spread: "", full: `about ${at}` };
  const [span, sure] = [range(between, now), sureOf(forecast.sure)];
  return { at, spread: `${span} · ${sure}`, full: `about ${at}, ${sure} sure between ${span.replace("–", " and ")}` };
}

/**
 * The start that a forecast gives a job.
 * @returns {{at: string, spread: string, full: string}|null} null if nothing is expected
 */
export const startOf = (forecast, now) => forecast && expected(forecast, "start", now);

/** The end that a forecast gives a job. */
export const finishOf = (forecast, now) => forecast && expected(forecast, "finish", now);
