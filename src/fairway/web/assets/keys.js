// Keys that work everywhere, and the list of all keys.

import { tellAll } from "./ask.js";
import { h } from "./dom.js";

const KEYS = [
  ["/", "search"], ["j  k", "next, previous row"], ["Enter", "open the row"], ["Home  End", "first, last row"],
  ["g q", "queue"], ["g c", "cluster"], ["g w", "what if"], ["g s", "submit"],
  ["u", "back to the queue"], ["+  −  ←  →", "zoom and move a time line that has the focus"], ["Esc", "clear the search, close, reset the zoom"], ["?", "this list"],
];
const PLACES = { q: "#/queue", c: "#/cluster", w: "#/what-if", s: "#/submit" };
let going = 0;

/** Whether somebody is typing text. */
export const typing = (event) => /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || event.target.isContentEditable;

/** Lists all keys. */
function showKeys() {
  const list = KEYS.flatMap(([keys, what]) => [h("dt", {}, ...keys.split("  ").flatMap((key) => [h("kbd", {}, key), " "])), h("dd", {}, what)]);
  tellAll("Keys", h("dl", { class: "keys" }, list));
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event) || document.querySelector("dialog[open]")) return;
  const second = Date.now() - going < 1500 ? PLACES[event.key] : undefined;
  going = event.key === "g" ? Date.now() : 0;
  if (second) location.hash = second;
  else if (event.key === "?") showKeys();
  else if (event.key === "u") location.hash = "#/queue";
  else if (event.key === "/") {
    const search = document.querySelector("input[type=search]");
    if (search) search.focus();
    else location.hash = "#/queue?focus=search";
  } else return;
  event.preventDefault();
}

/** Listens to keys. */
export function watchKeys() {
  document.addEventListener("keydown", pressed);
  document.getElementById("keys-button").addEventListener("click", showKeys);
}
