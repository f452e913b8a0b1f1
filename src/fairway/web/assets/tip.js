// The tooltip of charts, and the colours that tie names to lines.

import { make } from "./dom.js";

/** Classes of the n-th line: eight colours, then the same ones dashed. */
export const colour = (index) => `s${index % 8}`;
export const dash = (index) => (index < 8 ? "" : ` dash${Math.floor(index / 8) % 3}`);
export const swatchClass = (index) => `swatch ${colour(index)}${dash(index)}`;


const tip = document.getElementById("tip");

/** Shows the tooltip at a point of the window: a title, and rows of a name and a value. */
export function showTip(x, y, title, rows) {
  tip.replaceChildren();
  make("b", {}, tip, title);
  for (const { name, value, index } of rows.slice(0, 14)) {
    const row = make("div", {}, tip);
    if (index !== undefined) make("span", { class: swatchClass(index) }, row);
    make("span", {}, row, name);
    make("span", {}, row, value);
  }
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, x + 16 + box.width > innerWidth ? x - box.width - 16 : x + 16)}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - box.height - 8))}px`;
}

/** Takes it away. */
export const hideTip = () => { tip.hidden = true; };
