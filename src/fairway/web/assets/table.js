// Tables that a heading sorts.

import { h } from "./dom.js";

const MORE = 1000;

const compared = (a, b) => {
  if (a === b) return 0;
  if (a === null || a === undefined || a === "") return Infinity;
  if (b === null || b === undefined || b === "") return -Infinity;
  return a < b ? -1 : 1;
};

/**
 * A table of rows. A column is {label, value(row): what it sorts by, cell(row): a node or text, right, title}. `first` rows stay at
 * the top in any order. Many rows are shown a part at a time. `update(rows)` of what is returned shows other rows in the same order
 * and keeps the focus.
 */
export function sortedTable({ name, columns, rows, first = [], sort = null, down = false, most = 200, mark = () => ({}) }) {
  const order = { by: sort, down };
  const limit = { most };
  const body = h("tbody", {});
  const more = h("button", { type: "button", class: "plain more", onclick: () => { limit.most += MORE; fill(); } });
  const heads = columns.map((column, at) => {
    const button = h("button", { type: "button", onclick: () => { order.down = order.by === at && !order.down; order.by = at; fill(); } }, column.label);
    return h("th", { scope: "col", class: column.right ? "right" : "", title: column.title }, button);
  });
  const line = (row) => h("tr", mark(row), columns.map(({ cell, right }, at) => h(at ? "td" : "th", { class: right ? "right" : "", scope: at ? null : "row" }, cell(row))));
  let shown = rows;
  function fill() {
    const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const sorted = [...shown];
    if (order.by !== null) {
      const { value } = columns[order.by];
      sorted.sort((a, b) => {
        const found = compared(value(a), value(b));
        return Number.isFinite(found) ? found * (order.down ? -1 : 1) : Math.sign(found);
      });
    }
    heads.forEach((head, at) => head.setAttribute("aria-sort", order.by !== at ? "none" : order.down ? "descending" : "ascending"));
    body.replaceChildren(...first.map(line), ...sorted.slice(0, limit.most).map(line));
    if (focused) body.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    more.hidden = sorted.length <= limit.most;
    const rest = sorted.length - limit.most;
    more.textContent = `Show ${Math.min(MORE, rest).toLocaleString("en")} more of ${rest.toLocaleString("en")}`;
  }
  fill();
  const table = h("table", { class: "data" }, h("caption", { class: "sr" }, name), h("thead", {}, h("tr", {}, heads)), body);
  const host = h("div", { "class": "scroll", "tabindex": 0, "role": "region", "aria-label": name }, table, more);
  return Object.assign(host, { update: (others) => { shown = others; fill(); } });
}

/** Names and values, without those that have none. */
export const facts = (pairs) => h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

/** A link to a job. */
export const jobLink = (id) => h("a", { href: `#/job/${encodeURIComponent(id)}` }, id);

/** A card with a title, and something at its right. */
export const card = (title, aside, ...content) => h("section", { class: "card" }, h("div", { class: "title" }, h("h2", {}, title), aside), content);
