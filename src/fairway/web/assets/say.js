// What was done, in a line at the edge of the page that screen readers read out.

import { h } from "./dom.js";

const LASTS_MS = 9000;

/** Says one line for a while; `bad` for what did not work. */
export function announce(text, bad = false) {
  const line = h("p", { class: bad ? "bad" : "" }, h("span", {}, text));
  const away = () => line.remove();
  line.append(h("button", { type: "button", class: "plain", "aria-label": "Dismiss", onclick: away }, "×"));
  document.getElementById("said").append(line);
  setTimeout(away, LASTS_MS);
}
