// Questions before something happens, in one dialog.

import { h } from "./dom.js";

const dialog = document.getElementById("ask");

/**
 * Asks; gives what `read()` gives if the answer is yes, else undefined.
 * @param {{title: string, lines?: string[], fields?: Node[], yes: string, danger?: boolean, read?: () => unknown}} question
 */
export function ask({ title, lines = [], fields = [], yes, danger = false, read = () => true }) {
  return new Promise((done) => {
    const answer = (value) => { dialog.close(); done(value); };
    const accept = h("button", { type: "button", class: danger ? "danger" : "main", "data-answer": "yes", onclick: () => answer(read()) }, yes);
    const refuse = h("button", { type: "button", class: "plain", "data-answer": "no", onclick: () => answer(undefined) }, "Do nothing");
    dialog.replaceChildren(
      h("h2", { id: "ask-title" }, title), ...lines.filter(Boolean).map((line) => h("p", {}, line)), ...fields,
      h("div", { class: "answers" }, refuse, accept),
    );
    dialog.oncancel = () => done(undefined);
    dialog.onkeydown = (event) => {
      if (event.key === "Enter" && event.target.tagName === "INPUT") { event.preventDefault(); accept.click(); }
    };
    dialog.showModal();
    // What cannot be taken back needs more than Enter twice.
    (fields.length ? dialog.querySelector("input, select") : danger ? refuse : accept).focus();
  });
}

/** Shows something until it is closed. */
export function tellAll(title, ...content) {
  const close = h("button", { type: "button", class: "main", onclick: () => dialog.close() }, "Close");
  dialog.oncancel = null;
  dialog.onkeydown = null;
  dialog.replaceChildren(h("h2", { id: "ask-title" }, title), ...content, h("div", { class: "answers" }, close));
  dialog.showModal();
  close.focus();
}
