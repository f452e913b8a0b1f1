// Scales of charts, with ticks that a person reads.

import { UNITS, duration, percent, plain } from "./numbers.js";
import { clockTicks, moment, timeStep } from "./clock.js";

const TIME_MARKS = [
  0.001, 0.01, 0.1, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000, ...[1, 3, 10, 30, 100, 300, 1000, 10000].map((d) => d * 86400),
];
const tickName = (seconds, step) => {
  if (seconds === 0) return "0";
  const [size, unit] = UNITS.find(([size]) => step >= size) || [1, "s"];
  return `${plain(seconds / size, 6)} ${unit}`;
};
/** Marks of durations. */
function ticksOfTime(low, high, room) {
  const least = high - low >= 4 * 86400 ? 86400 : 0;
  const step = timeStep(low, high, room, least);
  const ticks = [];
  for (let t = Math.ceil(low / step) * step; t <= high * 1.0000001; t += step) ticks.push({ at: t, name: tickName(t, step) });
  return ticks;
}
function ticksOfCount(low, high, room) {
  const rough = (high - low || 1) / room;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((size) => size >= rough);
  const ticks = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step / 1e6; v += step) ticks.push({ at: v, name: plain(v, 6) });
  return ticks;
}
// The densest set of marks that leaves room for its names.
function thinned(marks, low, high, room, name) {
  const inside = marks.filter((mark) => mark >= low * 0.999 && mark <= high * 1.001);
  const every = Math.max(1, Math.ceil(inside.length / room));
  return inside.filter((_, i) => (inside.length - 1 - i) % every === 0).map((at) => ({ at, name: name(at) }));
}
function ticksOfRatio(low, high, room) {
  const marks = [];
  for (let power = -4; power < 8; power += 1) for (const k of [1, 2, 5]) marks.push(k * 10 ** power);
  const decades = marks.filter((_, i) => i % 3 === 0);
  const crowded = marks.filter((mark) => mark >= low && mark <= high).length > room * 1.7;
  return thinned(crowded ? decades : marks, low, high, room * 1.7, (v) => plain(v, 3));
}
/** How each kind of axis is divided and read out. */
export const KINDS = {
  "clock": { ticks: clockTicks, say: moment },
  "time": { ticks: ticksOfTime, say: duration },
  "log-time": { log: true, ticks: (l, h, room) => thinned(TIME_MARKS, l, h, room, (t) => tickName(t, t)), say: duration },
  "log-ratio": { log: true, ticks: ticksOfRatio, say: (v) => plain(v) },
  "share": { ticks: () => [0, 0.25, 0.5, 0.75, 1].map((at) => ({ at, name: `${at * 100} %` })), say: percent },
  "log-share": {
    log: true, say: percent,
    ticks: (l, h, room) => thinned([1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1], l, h, room, (v) => `${plain(v * 100, 2)} %`),
  },
  "count": { ticks: ticksOfCount, say: (v) => plain(v) },
  "whole": { ticks: (l, h, room) => ticksOfCount(l, h, Math.min(room, Math.max(1, h - l))), say: (v) => plain(v, 6) },
};
/** A function from values to pixels; `invert` goes back. */
export function scale(kind, [low, high], from, to) {
  const bend = KINDS[kind].log ? Math.log : (v) => v;
  const a = bend(low);
  const b = bend(high) - a || 1;
  const place = (value) => from + ((bend(value) - a) / b) * (to - from);
  place.invert = (pixel) => {
    const bent = a + ((pixel - from) / (to - from)) * b;
    return KINDS[kind].log ? Math.exp(bent) : bent;
  };
  return place;
}
