// What modules tell each other: "change" (rows or the forecast are new), "back" (the scheduler answers again), "theme", "who".

const bus = new EventTarget();

/** Tells everybody who listens. */
export const tell = (what, detail) => bus.dispatchEvent(new CustomEvent(what, { detail }));

/** Listens until `signal` is aborted. */
export const hear = (what, act, signal) => bus.addEventListener(what, (event) => act(event.detail), { signal });
