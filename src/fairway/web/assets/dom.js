// Elements. Text is always set as text: what a user named is never read as HTML.

/** Makes an element inside `parent`; `space` is its XML name space. */
export const make = (tag, attributes = {}, parent = null, text = null, space = null) => {
  const node = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  if (parent) parent.append(node);
  return node;
};

/** The same for SVG. */
export const draw = (tag, attributes, parent, text = null) => make(tag, attributes, parent, text, "http://www.w3.org/2000/svg");

/**
 * An element with its children: `h("p", { class: "note" }, "text", h("b", {}, "bold"))`. Attributes that are null, undefined or
 * false are left out (but aria-… may be false), `on…` functions listen, and children that are null, undefined or false are skipped.
 */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || (value === false && !key.startsWith("aria-"))) continue;
    if (typeof value === "function") node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true && !key.startsWith("aria-") ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Sets the text of a node only where it differs, so that nothing is laid out again for nothing. */
export const say = (node, text) => { if (node.textContent !== text) node.textContent = text; };

/** Calls `redraw` after the size of `host` has changed. Inside the observer's own turn that would be reported as a loop. */
export function onResize(host, redraw) {
  const observer = new ResizeObserver(() => requestAnimationFrame(() => { if (host.isConnected) redraw(); }));
  observer.observe(host);
}
