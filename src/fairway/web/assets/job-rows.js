// The list of jobs as it comes over the wire: by columns, because that packs best.

const TEXTS = new Set(["id", "name", "user", "queue", "state", "reason", "command"]);

/**
 * The rows of a list that came by columns. A text that several rows have is a place in `texts`; ids and dates of submission that are
 * numbers are the difference from the one before. `find` is for the text in which a search looks.
 */
export function rowsOf({ fields, texts, columns, now_s: seen_s }) {
  const rows = columns[0].map(() => ({ seen_s, find: "" }));
  fields.forEach((field, i) => {
    const isText = TEXTS.has(field);
    let last = 0;
    columns[i].forEach((cell, at) => {
      if (typeof cell === "number" && field === "id") rows[at].id = String(last += cell);
      else if (field === "submitted_s") rows[at].submitted_s = last += cell;
      else rows[at][field] = isText && typeof cell === "number" ? texts[cell] : cell;
    });
  });
  return rows;
}
