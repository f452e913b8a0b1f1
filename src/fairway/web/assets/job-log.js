// The log of a job. However long it is, only its end is loaded, and then what is added.

import { attempt } from "./api.js";
import { hear } from "./bus.js";
import { h } from "./dom.js";
import { readText } from "./stream.js";
import { card } from "./table.js";

const TAIL = "tail_bytes=262144";
const MOST_CHARS = 1_000_000;
const MOST_WAITING = 500_000;
const NEAR_PX = 30;
const AGAIN_MS = 3000;
// Colours and cursor movements of terminals.
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g;

/** A line as a terminal would leave it: progress bars write over themselves. */
const settled = (line) => {
  const whole = line.replace(/\r+$/, "");
  return whole.slice(whole.lastIndexOf("\r") + 1);
};

/** Text that grows at its end and is cut at its beginning; it scrolls along only while the reader is at its end. */
class Scroll {
  constructor(follows) {
    this.node = h("pre", { "class": "log", "tabindex": 0, "role": "log", "aria-label": "Log", "aria-live": "off" });
    this.follows = follows;
    this.node.addEventListener("scroll", () => this.follows(this.atEnd()), { passive: true });
    this.clear();
  }

  clear() {
    this.rest = "";
    this.waiting = "";
    this.chars = 0;
    this.open = document.createTextNode("");
    this.node.replaceChildren(this.open);
  }

  atEnd() { return this.node.scrollTop + this.node.clientHeight >= this.node.scrollHeight - NEAR_PX; }

  toEnd() { this.node.scrollTop = this.node.scrollHeight; }

  add(text) {
    this.waiting += text;
    // A job that writes faster than anybody reads: what lies between is skipped.
    if (this.waiting.length > MOST_WAITING) this.waiting = `\n… skipped …\n${this.waiting.slice(-MOST_WAITING / 2)}`;
    this.asked ||= requestAnimationFrame(() => { this.asked = 0; this.write(); });
  }

  write() {
    const stay = !this.atEnd();
    const lines = (this.rest + this.waiting.replace(ESCAPES, "")).split("\n");
    this.waiting = "";
    this.rest = lines.pop();
    if (lines.length) {
      const text = `${lines.map(settled).join("\n")}\n`;
      this.open.before(text);
      this.chars += text.length;
    }
    this.open.data = settled(this.rest);
    while (this.chars > MOST_CHARS && this.node.firstChild !== this.open) {
      this.chars -= this.node.firstChild.length;
      this.node.firstChild.remove();
    }
    if (!stay) this.toEnd();
  }
}

function rankPicker(ranks, changed) {
  if (ranks < 2) return "";
  const options = [h("option", { value: "" }, "all ranks"), ...Array.from({ length: ranks }, (_, rank) => h("option", { value: rank }, `rank ${rank}`))];
  const select = h("select", { "aria-label": "Rank" }, options);
  select.addEventListener("change", () => changed(select.value));
  return select;
}

/** A card with the log of a job that had so many ranks; `isOver()` says when nothing more can come. */
export function logCard(id, ranks, isOver, signal) {
  const state = { rank: "", reading: null };
  const note = h("span", { class: "soft", role: "status" });
  const latest = h("button", { type: "button", class: "plain", hidden: true, onclick: () => scroll.toEnd() }, "↓ Latest");
  const scroll = new Scroll((atEnd) => { latest.hidden = atEnd; });
  const path = () => `/v1/jobs/${encodeURIComponent(id)}/logs`;
  async function read() {
    state.reading?.abort();
    if (document.hidden || signal.aborted) return;
    const mine = new AbortController();
    state.reading = mine;
    scroll.clear();
    note.textContent = isOver() ? "" : "Nothing written yet.";
    const query = `${TAIL}&follow=true${state.rank === "" ? "" : `&rank=${state.rank}`}`;
    let came = false;
    await attempt(() => readText(`${path()}?${query}`, (text) => { if (!came) note.textContent = ""; came = true; scroll.add(text); }, mine.signal), (error) => { note.textContent = error.message; });
    if (mine.signal.aborted || signal.aborted) return;
    if (!came && isOver() && !note.textContent) note.textContent = "It wrote nothing.";
    if (!isOver()) setTimeout(() => { if (!mine.signal.aborted && !signal.aborted && !isOver()) read(); }, AGAIN_MS);
  }
  const whole = h("a", { href: path(), download: `job-${id}.log` }, "Download");
  const picker = rankPicker(ranks, (rank) => { state.rank = rank; read(); });
  document.addEventListener("visibilitychange", () => { if (document.hidden) state.reading?.abort(); else read(); }, { signal });
  hear("back", read, signal);
  signal.addEventListener("abort", () => state.reading?.abort());
  read();
  return card("Log", h("span", { class: "aside" }, note, latest, picker, whole), scroll.node);
}
