// When something will happen, and how sure that is.

import { second, when } from "./clock.js";

const sameDay = (a, b) => new Date(a * 1000).toDateString() === new Date(b * 1000).toDateString();

/** 14:05–15:00; the day is said twice only where it differs, and seconds only within a minute. */
export function range([low, high], now) {
  const [from, to] = [when(low, now), when(high, now)];
  if (from === to) return `${second(low)}–${second(high).slice(-2)}`;
  return `${from}–${sameDay(low, high) ? to.split(" ").pop() : to}`;
}

const sureOf = (sure) => `${Math.round(sure * 100)} %`;

/**
 * A date that is only expected: `at` in short, `spread` for beside it, and `full` as a sentence would have it.
 * @returns {{at: string, spread: string, full: string}|null} null if nothing is expected
 */
export function expected(at_s, between, sure, now) {
  if (at_s === null || at_s === undefined) return null;
  const at = when(at_s, now);
  if (!between) return { at, spread: "", full: `about ${at}` };
  const span = range(between, now);
  if (!sure) return { at, spread: span, full: `about ${at}, between ${span.replace("–", " and ")}` };
  return { at, spread: `${span} · ${sureOf(sure)}`, full: `about ${at}, ${sureOf(sure)} sure between ${span.replace("–", " and ")}` };
}

/** The start that a forecast gives a job, as `expected` has it. */
export const startOf = (told, now) => told && expected(told.start_s, told.start_between_s, told.sure, now);

/** The end that a forecast gives a job. */
export const finishOf = (told, now) => told && expected(told.finish_s, told.finish_between_s, told.sure, now);
