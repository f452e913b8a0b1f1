// Durations as people type them: 90, 45m, 4h, 1d12h, 2:30:00.

const SIZES = { s: 1, sec: 1, m: 60, min: 60, h: 3600, hour: 3600, hours: 3600, d: 86400, day: 86400, days: 86400, w: 604800 };

/** Seconds, as `fairway submit --time` reads them; null for nothing, NaN for what is no duration. */
export function durationOf(text) {
  const typed = text.trim().toLowerCase();
  if (!typed) return null;
  if (/^\d+(\.\d+)?$/.test(typed)) return Number(typed);
  if (/^\d+:\d{2}(:\d{2})?$/.test(typed)) {
    const parts = typed.split(":").map(Number);
    return parts.length === 3 ? parts[0] * 3600 + parts[1] * 60 + parts[2] : parts[0] * 60 + parts[1];
  }
  const parts = [...typed.matchAll(/(\d+(?:\.\d+)?)\s*([a-z]+)\s*/g)];
  if (!parts.length || parts.map(([whole]) => whole).join("") !== typed || parts.some(([, , unit]) => !(unit in SIZES))) return NaN;
  return parts.reduce((sum, [, number, unit]) => sum + Number(number) * SIZES[unit], 0);
}
