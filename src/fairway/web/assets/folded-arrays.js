// Arrays as one row, as `fairway ls` has them: the tasks that run, that wait and that have ended are a row each.

import { groupOf } from "./states.js";

/** The array that a task belongs to; undefined for a job of its own. */
export const arrayOf = (id) => (id.includes("_") ? id.slice(0, id.indexOf("_")) : undefined);

/** One row for some tasks: as the first of them, which is the one that comes next. */
function foldedRow(tasks, order) {
  const first = tasks.reduce((best, task) => (order(task, best) < 0 ? task : best));
  const held = tasks.reduce((sum, task) => sum + task.gpus_held, 0);
  return { ...first, id: arrayOf(first.id), lead: first.id, key: `${arrayOf(first.id)}-${groupOf(first.state)}`, tasks: tasks.length, gpus_held: held, step: 0, steps: null };
}

/** Rows with the tasks of arrays folded; a task that is alone in its group stays as it is. */
export function folded(rows, order) {
  const arrays = new Map();
  const out = [];
  for (const row of rows) {
    const array = arrayOf(row.id);
    const key = array && `${array} ${groupOf(row.state)}`;
    if (!array) out.push(row);
    else if (arrays.has(key)) arrays.get(key).push(row);
    else arrays.set(key, [row]);
  }
  for (const tasks of arrays.values()) out.push(tasks.length === 1 ? tasks[0] : foldedRow(tasks, order));
  return out;
}
