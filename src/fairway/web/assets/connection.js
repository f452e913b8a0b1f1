// A scheduler that goes away: the page says so, tries again with longer and longer pauses, and comes back by itself.

import { h } from "./dom.js";
import { hear, tell } from "./bus.js";
import { remembered } from "./session.js";
import { start, stop } from "./store.js";

const FIRST_MS = 500;
const LONGEST_MS = 15_000;
const banner = document.getElementById("banner");
let trying = false;

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** Shows a line across the page, or takes it away. */
function show(text) {
  banner.hidden = text === null;
  banner.replaceChildren(...(text === null ? [] : [h("span", {}, text)]));
  document.body.classList.toggle("away", text !== null);
}

async function comeBack() {
  if (trying) return;
  trying = true;
  stop();
  let why = "the scheduler does not answer";
  for (let wait = 0; ; wait = Math.min(LONGEST_MS, Math.max(FIRST_MS, wait * 2))) {
    if (wait) {
      show(`${why[0].toUpperCase()}${why.slice(1)}. What you see is from before; trying again every ${Math.ceil(wait / 1000)} s.`);
      await pause(wait * (0.8 + 0.4 * Math.random()));
    }
    if (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
    try {
      const signedIn = await remembered();
      if (signedIn) await start();
      show(null);
      trying = false;
      tell(signedIn ? "back" : "signed-out");
      return;
    } catch (error) {
      why = error.message;
    }
  }
}

/** Watches over the connection. */
export const watchConnection = () => hear("lost", comeBack);
