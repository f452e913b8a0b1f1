// Light, dark, or as the system is.

import { say } from "./dom.js";
import { tell } from "./bus.js";

const ORDER = ["auto", "light", "dark"];
const SIGNS = { auto: "◐", light: "☀", dark: "☾" };
const button = document.getElementById("theme-button");
const current = () => document.documentElement.dataset.theme || "auto";

function show() {
  say(button, SIGNS[current()]);
  const name = `Colours: ${current() === "auto" ? "as the system" : current()}`;
  button.setAttribute("aria-label", name);
  button.title = name;
}

/** Makes the button work. */
export function watchLook() {
  show();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => tell("theme"));
  button.addEventListener("click", () => {
    const next = ORDER[(ORDER.indexOf(current()) + 1) % ORDER.length];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    localStorage.setItem("fairway-theme", next);
    show();
    tell("theme");
  });
}
