// Nodes and their GPUs: who is where now.

import { h } from "./dom.js";
import { blockColours } from "./gantt.js";
import { percent } from "./numbers.js";
import { jobOf } from "./store.js";
import { jobLink } from "./table.js";
import { hueOf } from "./timeline-data.js";

const GIB = 2 ** 30;
const gib = (bytes) => `${(bytes / GIB).toFixed(bytes < 10 * GIB ? 1 : 0)} GiB`;

function meter(name, share, text) {
  const bar = h("i", { class: "bar" });
  bar.style.setProperty("--done", share);
  return h("div", { class: "meter", title: `${name}: ${text}`, role: "img", "aria-label": `${name} ${text}` }, bar);
}

/** One job on a GPU; several of them are lanes of it. */
function lane(id, colours, byUser) {
  const row = jobOf(id);
  const stripe = h("i", { class: "stripe", "aria-hidden": "true" });
  stripe.style.background = colours[hueOf(byUser ? row?.user ?? "" : id) % colours.length];
  return h("div", { "class": "lane", "data-job": id }, stripe, jobLink(id), " ", h("span", { title: row?.name }, row?.name ?? ""), h("span", { class: "soft" }, row?.user ?? ""));
}

const asleep = ({ id, memory, bytes }) => h("div", { class: "soft asleep" }, "suspended: ", jobLink(id), ` ${bytes ? `${gib(bytes)} ` : ""}${memory === "host" ? "in host memory" : "on the GPU"}`);

const IDLE = { idle: "idle", foreign: "in use by others", unreachable: "does not answer", lost: "lost", drained: "drained" };

function gpuCell(gpu, node, held, colours, byUser) {
  const use = gpu.utilisation ?? null;
  const memory = gpu.memory_used_bytes ?? null;
  return h("li", { "class": `gpu ${gpu.use}`, "data-gpu": gpu.index },
    h("div", { class: "gpu-head" }, h("b", {}, gpu.index),
      use === null ? held !== undefined && h("span", { class: "soft", title: "share of the time shown below in which a job had it" }, `held ${percent(Math.round(held * 100) / 100)}`) : h("span", { class: "soft" }, percent(use)),
      memory === null ? "" : h("span", { class: "soft" }, gib(memory))),
    use === null ? held !== undefined && meter("held", held, percent(held)) : meter("utilisation", use, percent(use)),
    memory === null || !node.memory_bytes ? "" : meter("memory", memory / node.memory_bytes, `${gib(memory)} of ${gib(node.memory_bytes)}`),
    gpu.jobs.length ? gpu.jobs.map((id) => lane(id, colours, byUser)) : h("div", { class: "soft", title: gpu.reason }, IDLE[gpu.use] || gpu.use),
    gpu.suspended.map(asleep));
}

/** All nodes; `held` has the share of time of each GPU by its number in the cluster. */
export function nodeCards(nodes, held, byUser) {
  const colours = blockColours();
  const total = nodes.reduce((sum, { gpus }) => sum + gpus.length, 0);
  let number = 0;
  return nodes.map((node) => {
    const cells = node.gpus.map((gpu) => gpuCell(gpu, node, held.get(number++), colours, byUser));
    const about = [`${node.gpus.length} × ${node.gpu_type}`, node.memory_bytes ? gib(node.memory_bytes) : ""].filter(Boolean).join(", ");
    const state = node.status === "up" ? "" : h("span", { class: "chip wary" }, h("i", { class: "dot" }), node.status);
    return h("section", { "class": "card node", "data-node": node.name },
      h("div", { class: "title" }, h("h2", {}, node.name), h("span", { class: "soft" }, about), state, node.reason ? h("span", { class: "soft" }, node.reason) : ""),
      h("ul", { class: total > 128 ? "gpus many" : "gpus" }, cells));
  });
}
