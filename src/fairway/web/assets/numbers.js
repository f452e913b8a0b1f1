// Numbers, shares and durations as people write them.

/** Units of time, the largest first. */
export const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

/** A number with so many digits that count. */
export const plain = (value, digits = 3) => Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 6 });

/** A share as a percentage. */
export const percent = (share) => {
  if (share > 0 && share < 0.01) return `${plain(share * 100, 2)} %`;
  return `${(share * 100).toFixed(share > 0.99 && share < 1 ? 2 : 1).replace(/\.0+$/, "")} %`;
};

/** A duration in two units: 2 h 5 min. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${plain(seconds, 2)} s`;
  const at = UNITS.findIndex(([size]) => seconds >= size);
  const [size, unit] = UNITS[at];
  const [smaller, smallerUnit] = UNITS[at + 1];
  let whole = Math.floor(seconds / size);
  let rest = Math.round((seconds - whole * size) / smaller);
  if (rest * smaller >= size) { whole += 1; rest = 0; }
  return rest && whole < 100 ? `${whole} ${unit} ${rest} ${smallerUnit}` : `${whole} ${unit}`;
}

/** A duration as one number and one unit, for tables with many columns. */
export const brief = (seconds) => {
  if (seconds === null || seconds === undefined) return "–";
  const [size, unit] = UNITS.find(([least]) => seconds >= least) || [1, "s"];
  return `${plain(seconds / size, 3)} ${unit}`;
};

/** How long ago something was, in whole units. */
export const ago = (seconds) => {
  const [size, unit] = UNITS.find(([least]) => seconds >= least) || [1, "s"];
  return `${Math.max(0, Math.floor(seconds / size))} ${unit}`;
};

/** The last entry of a list. */
export const last = (list) => list[list.length - 1];
