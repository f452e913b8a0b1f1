// Spans of jobs on GPUs as the blocks of a Gantt: what was, and what is forecast.

import { LANES_CODE } from "./gantt.js";

/** A colour for a name, the same in every picture. */
export function hueOf(name) {
  let hash = 7;
  for (let i = 0; i < name.length; i += 1) hash = (hash * 31 + name.charCodeAt(i)) >>> 0;
  return hash;
}

/** Gives each span of one GPU a lane; spans that overlap, also through others, divide the row equally. */
function lanes(spans) {
  spans.sort((a, b) => a.from - b.from || b.to - a.to);
  let cluster = [];
  let ends = [];
  let until = -Infinity;
  const close = () => { for (const span of cluster) span.lanes = ends.length; };
  for (const span of spans) {
    if (span.from >= until) { close(); cluster = []; ends = []; until = -Infinity; }
    let lane = ends.findIndex((end) => end <= span.from);
    if (lane < 0) lane = ends.length;
    ends[lane] = span.to;
    span.lane = lane;
    cluster.push(span);
    until = Math.max(until, span.to);
  }
  close();
  return spans;
}

function byGpu(spans) {
  const found = new Map();
  for (const span of spans) {
    if (!found.has(span.gpu)) found.set(span.gpu, []);
    found.get(span.gpu).push(span);
  }
  return found;
}

/**
 * The data of a Gantt from the answers of the timeline and the forecast, and of the rows of jobs for what neither names.
 * @returns {{kind: "segments", rows: string[], jobs: string[], ids: string[], users: string[], hues: number[], flat: number[], pale: number}}
 */
export function ganttData(timeline, forecast, now, jobOf, byUser) {
  const seen = new Map();
  const data = { kind: "segments", t0_s: timeline.from_s, unit_s: 1, now_s: now, rows: [], jobs: [], ids: [], users: [], hues: [], flat: [] };
  const rowOf = new Map(timeline.gpus.map(({ gpu }, row) => [gpu, row]));
  const inNode = new Map();
  for (const { node } of timeline.gpus) {
    const index = inNode.get(node) ?? 0;
    inNode.set(node, index + 1);
    data.rows.push(`${node}/${index}`);
  }
  const jobIndex = (id) => {
    if (seen.has(id)) return seen.get(id);
    const about = timeline.jobs[id] || jobOf(id) || { name: "", user: "" };
    seen.set(id, data.ids.length);
    data.ids.push(id);
    data.jobs.push(about.name ? `${id} ${about.name}` : `job ${id}`);
    data.users.push(about.user);
    data.hues.push(hueOf(byUser ? about.user : id));
    return data.ids.length - 1;
  };
  const add = (spans) => {
    for (const [gpu, own] of byGpu(spans)) {
      const row = rowOf.get(gpu);
      if (row === undefined) continue;
      for (const { id, from, to, lane, lanes: count } of lanes(own)) {
        data.flat.push(row, from - timeline.from_s, to - timeline.from_s, jobIndex(id), lane + LANES_CODE * (count - 1));
      }
    }
  };
  add(timeline.spans.map(([gpu, id, from, to]) => ({ gpu, id, from, to: Math.min(to ?? now, now) })));
  data.pale = data.flat.length;
  add((forecast?.spans || []).map(([gpu, id, from, to]) => ({ gpu, id, from: Math.max(from, now), to: to ?? forecast.until_s })).filter(({ from, to }) => to > from));
  return data;
}

/** What part of the time since the first span each GPU was held, by its number, and how long that time is. */
export function heldShares(timeline, now) {
  const held = new Map();
  const since = timeline.spans.reduce((first, [, , from]) => Math.min(first, from), now);
  const whole = Math.max(1, now - Math.max(timeline.from_s, since));
  for (const [gpu, , from, to, , host] of timeline.spans) {
    if (host === null || host === undefined) held.set(gpu, (held.get(gpu) ?? 0) + Math.max(0, Math.min(to ?? now, now) - Math.max(from, timeline.from_s)));
  }
  return { lasted_s: whole, of: new Map(timeline.gpus.map(({ gpu }) => [gpu, Math.min(1, (held.get(gpu) ?? 0) / whole)])) };
}
