// The frame of the page: signing in, which view is open, and what is at the top of all of them.

import { attempt } from "./api.js";
import { hear, tell } from "./bus.js";
import { watchConnection } from "./connection.js";
import { h, say } from "./dom.js";
import { watchKeys } from "./keys.js";
import { watchLook } from "./look.js";
import { announce } from "./say.js";
import { forget, maySubmit, me, remembered, signIn, signOut } from "./session.js";
import { allJobs, known, start } from "./store.js";

const TITLES = { "queue": "Queue", "cluster": "Cluster", "job": "Job", "what-if": "What if", "submit": "Submit", "sign-in": "Sign in" };
const main = document.getElementById("main");
let opened = null;
let refused = "";

function plainOf(text) {
  try {
    return decodeURIComponent(text);
  } catch (error) {
    return text;
  }
}

/** The view, its argument and its options that the address names. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...rest] = path.split("/");
  return { view: Object.hasOwn(TITLES, view) ? view : "queue", argument: plainOf(rest.join("/")), options: new URLSearchParams(query) };
}

/** Opens the view that the address names; the one before is told to stop by its signal. */
async function open() {
  const asked = place();
  const view = me() === null ? "sign-in" : asked.view;
  if (opened && opened.view === view && opened.argument === asked.argument && view === "queue") return;
  opened?.stop.abort();
  const mine = { view, argument: asked.argument, stop: new AbortController() };
  const first = opened === null;
  opened = mine;
  delete document.body.dataset.ready;
  document.title = `${TITLES[view]} · Fairway`;
  for (const link of document.querySelectorAll("#top nav a")) {
    const here = link.getAttribute("href") === `#/${view}`;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const { show } = await import(`./${view}.js`).catch(() => ({}));
  if (opened !== mine) return;
  if (!show) { opened = null; announce("the scheduler does not answer, and this view is not loaded yet", true); return; }
  const root = h("section", { "data-view": view });
  main.replaceChildren(root);
  const ready = () => { if (opened === mine) document.body.dataset.ready = "1"; };
  show({ root, argument: asked.argument, options: asked.options, signal: mine.stop.signal, ready, refused });
  if (!first && !root.contains(document.activeElement)) main.focus({ preventScroll: true });
}

function showWho() {
  const host = document.getElementById("who");
  const user = me();
  document.body.classList.toggle("signed-out", user === null);
  for (const link of document.querySelectorAll("[data-needs=submit]")) link.hidden = !maySubmit();
  if (user === null) { host.replaceChildren(); return; }
  const role = user.role === "read" ? "read only" : user.operator ? "operator" : "";
  const leave = h("button", { type: "button", class: "plain", onclick: () => attempt(signOut, (error) => announce(error.message, true)) }, "Sign out");
  host.replaceChildren(h("b", {}, user.user), role ? h("span", { class: "role" }, role) : "", leave);
}

/** The line at the top: GPUs in use, the policy, and what is wrong. */
function showGist() {
  const { status } = known();
  if (!status) return;
  let running = 0;
  let waiting = 0;
  for (const row of allJobs()) {
    if (row.state === "RUNNING") running += 1;
    else if (row.ended_s === null) waiting += 1;
  }
  const gist = document.getElementById("gist");
  const count = (number) => number.toLocaleString("en");
  say(gist, `${status.gpus_held} of ${status.gpus} GPUs · ${count(running)} running · ${count(waiting)} waiting · ${status.policy}`);
  gist.title = status.cluster;
  const trouble = document.getElementById("trouble");
  const wrong = status.problem || status.audit_problem || (status.accepts ? "" : "the disk is nearly full: submissions are refused");
  say(trouble, wrong);
  trouble.hidden = !wrong;
}

const linkIn = () => /^#link=(.+)$/.exec(location.hash)?.[1];

/** A link of `fairway web` carries its secret in the fragment; it is taken out of the address before anything else. */
async function enter() {
  const link = linkIn();
  if (link) {
    history.replaceState(null, "", `${location.pathname}#/queue`);
    try {
      await signIn({ link });
      refused = "";
      return true;
    } catch (error) {
      refused = error.message;
    }
  }
  return remembered();
}

/** The address has changed: to another view, or to a link that was pasted into an open page. */
async function moved() {
  if (!linkIn()) { open(); return; }
  const signedIn = await enter().catch(() => false);
  tell(signedIn ? "signed-in" : "signed-out");
  if (refused) announce(refused, true);
}

/** The views that nobody has opened yet are loaded beforehand: they then work while the scheduler is away. */
const loadViews = () => { for (const view of Object.keys(TITLES)) import(`./${view}.js`).catch(() => {}); };

async function begin() {
  watchLook();
  watchKeys();
  watchConnection();
  window.addEventListener("hashchange", moved);
  document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
  hear("who", showWho);
  let drawn = 0;
  hear("change", () => { drawn ||= requestAnimationFrame(() => { drawn = 0; showGist(); }); });
  hear("signed-in", () => { refused = ""; start().catch(() => tell("lost")); open(); });
  hear("signed-out", () => { if (me() !== null) { forget(); refused = "your session has ended; sign in again"; } open(); });
  hear("who", () => { if (me() === null && opened) open(); });
  hear("back", () => { if (!opened) open(); });
  try {
    const signedIn = await enter();
    showWho();
    if (signedIn) start().catch(() => tell("lost"));
  } catch (error) {
    tell("lost");
    return;
  }
  await open();
  setTimeout(loadViews, 1500);
}

begin();
