// What if: the present rolled forward under other conditions, and the last days replayed under other policies.

import { attempt, get } from "./api.js";
import { h } from "./dom.js";
import { ahead } from "./look-ahead.js";
import { back } from "./look-back.js";
import { promises } from "./promises.js";

/** Shows both questions. */
export async function show({ root, signal, options, ready }) {
  root.append(h("header", { class: "view-head" }, h("h1", {}, "What if"), h("p", { class: "soft" }, "The scheduler's own code decides in the simulator. Nothing is changed.")), h("p", { class: "empty" }, "Loading …"));
  const told = await attempt(() => Promise.all([get("/v1/policy", signal), get("/v1/nodes", signal)]), (error) => { root.lastChild.textContent = error.message; });
  ready();
  if (!told) return;
  const [policy, { nodes }] = told;
  const gpus = {};
  for (const node of nodes) gpus[node.gpu_type] = (gpus[node.gpu_type] ?? 0) + node.gpus.length;
  root.lastChild.replaceWith(ahead(policy, gpus, signal), back(policy, gpus, signal, options.get("days")));
  const record = await promises(signal);
  if (record && !signal.aborted) root.append(record);
}
