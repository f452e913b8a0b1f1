// Times of day, by the reader's own clock.

const TIME_STEPS = [
  1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200,
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].map((days) => days * 86400),
];
/** The smallest step of time that leaves room for so many marks. */
export const timeStep = (low, high, room, least = 0) => (
  TIME_STEPS.find((size) => size >= least && (high - low) / size <= room) || (high - low) / room
);

const two = (number) => String(number).padStart(2, "0");
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const DAY_S = 86400;

/** 14:20 */
const hourOf = (date) => `${two(date.getHours())}:${two(date.getMinutes())}`;
const dayOf = (date) => `${DAYS[date.getDay()]} ${date.getDate()} ${MONTHS[date.getMonth()]}`;
const midnight = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();

/** A date as short as it can be: 14:20 today, Fri 09:10 within a week, else 21 Nov 09:10 or 21 Nov 2025. */
export function when(seconds, now_s = Date.now() / 1000) {
  if (seconds === null || seconds === undefined) return "–";
  const date = new Date(seconds * 1000);
  const now = new Date(now_s * 1000);
  const days = Math.round((midnight(date) - midnight(now)) / 1000 / DAY_S);
  if (days === 0) return hourOf(date);
  if (days > -7 && days < 7) return `${DAYS[date.getDay()]} ${hourOf(date)}`;
  const day = `${date.getDate()} ${MONTHS[date.getMonth()]}`;
  return date.getFullYear() === now.getFullYear() ? `${day} ${hourOf(date)}` : `${day} ${date.getFullYear()}`;
}

/** 14:20:07 */
export function second(seconds) {
  const date = new Date(seconds * 1000);
  return `${hourOf(date)}:${two(date.getSeconds())}`;
}

/** A date in full: Wed 18 Nov 14:20:07. */
export function moment(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return `${dayOf(new Date(seconds * 1000))} ${second(seconds)}`;
}

/** Marks of a time axis at round local times. */
export function clockTicks(low, high, room) {
  const step = timeStep(low, high, room);
  const ahead_s = -new Date(low * 1000).getTimezoneOffset() * 60;
  const ticks = [];
  for (let at = Math.ceil((low + ahead_s) / step) * step - ahead_s; at <= high; at += step) {
    const date = new Date(at * 1000);
    const newDay = date.getHours() === 0 && date.getMinutes() === 0 && date.getSeconds() === 0;
    const name = newDay ? dayOf(date) : step < 60 ? `${hourOf(date)}:${two(date.getSeconds())}` : hourOf(date);
    ticks.push({ at, name });
  }
  return ticks;
}
