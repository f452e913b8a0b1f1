// The record of promises: how good the starts and ends were that were told.

import { attempt, get } from "./api.js";
import { h } from "./dom.js";
import { duration, percent } from "./numbers.js";
import { card, sortedTable } from "./table.js";

const share = (value) => (value === null ? "–" : percent(Math.round(value * 1000) / 1000));
const WORDS = { start: "starts", finish: "ends" };

function table(name, label, rows, whom) {
  const columns = [
    { label, value: whom, cell: whom },
    { label: "What", value: (row) => row.kind, cell: (row) => WORDS[row.kind] },
    { label: "Told", value: (row) => row.promises, cell: (row) => row.promises.toLocaleString("en"), right: true },
    { label: "Within the interval", value: (row) => row.within, cell: (row) => share(row.within), right: true, title: "the share of promises that came true between the times that were told" },
    { label: "Median error", value: (row) => row.median_error_s, cell: (row) => duration(row.median_error_s), right: true },
    { label: "of the wait", value: (row) => row.median_relative_error, cell: (row) => share(row.median_relative_error), right: true, title: "the median error over the time that was told" },
    { label: "Median width", value: (row) => row.median_width_s, cell: (row) => duration(row.median_width_s), right: true, title: "how wide the intervals were" },
  ];
  return sortedTable({ name, columns, rows });
}

/** A card with the record by policy and by user, and whether intervals are shown; nothing where no promise was decided yet. */
export async function promises(signal) {
  const told = await attempt(() => get("/v1/eta", signal), () => undefined);
  if (!told?.policies?.length) return null;
  const shown = told.intervals.map(({ kind, why }) => h("p", { class: "soft hint", "data-intervals": kind }, `${kind === "start" ? "Starts" : "Ends"}: ${why}.`));
  return card("Promises kept", h("code", { class: "soft" }, "fairway eta"),
    h("p", { class: "soft hint" }, `Starts and ends that were told, with intervals meant to be right ${Math.round(told.sure * 100)} % of the time: the latest ${told.latest.toLocaleString("en")} that are decided. ${told.open.toLocaleString("en")} are still open.`),
    shown,
    h("div", { class: "side" }, table("Promises by policy", "Policy", told.policies, (row) => row.policy), table("Promises by user", "User", told.users, (row) => row.user)));
}
