// Conditions of a question: fields for a number of GPUs of each type, and for differences in answers.

import { h } from "./dom.js";
import { duration } from "./numbers.js";

/** A label with its field. */
export const field = (name, input, hint) => h("label", { class: "field" }, h("span", {}, name), input, hint && h("small", { class: "soft" }, hint));

/** One field per GPU type; `read()` gives what the cluster would have, or undefined if that is what it has. */
export function gpuFields(gpus) {
  const inputs = Object.entries(gpus).map(([type, count]) => [type, h("input", { "type": "number", "min": 0, "max": 100_000, "step": 1, "value": count, "data-gpus": type })]);
  const read = () => {
    const asked = Object.fromEntries(inputs.map(([type, input]) => [type, input.valueAsNumber || 0]));
    return inputs.every(([type]) => asked[type] === gpus[type]) ? undefined : asked;
  };
  return { nodes: inputs.map(([type, input]) => field(`${type} GPUs`, input)), read };
}

/** How much later or earlier, as text with a sign, in a colour where it matters. */
export function difference(then, otherwise) {
  if (then === null || then === undefined || otherwise === null || otherwise === undefined) return "–";
  const by = then - otherwise;
  if (Math.abs(by) < 1) return h("span", { class: "soft" }, "same");
  return h("span", { class: by < 0 ? "better" : "worse" }, `${by < 0 ? "−" : "+"}${duration(Math.abs(by))}`);
}

/** The same as a number, to sort by. */
export const gained = (then, otherwise) => (then === null || then === undefined || otherwise === null || otherwise === undefined ? null : then - otherwise);

/** A button that is off while its question is being answered; says so, and what went wrong. */
export function asker(label, act) {
  const said = h("span", { class: "soft", role: "status" });
  const button = h("button", { "type": "button", "class": "main", "data-ask": "", "onclick": async () => {
    button.disabled = true;
    said.textContent = "Simulating …";
    said.className = "soft";
    try {
      await act();
      said.textContent = "";
    } catch (error) {
      if (error.name === "AbortError") return;
      said.textContent = error.message;
      said.className = "worse";
    }
    button.disabled = false;
  } }, label);
  return h("div", { class: "inline ask-row" }, button, said);
}
