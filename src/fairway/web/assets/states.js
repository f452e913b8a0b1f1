// The states of a job, in groups as people ask about them.

/** The group of each state. */
export const GROUP = {
  RUNNING: "running", PENDING: "waiting", PREEMPTED: "waiting", SUSPENDED: "waiting",
  COMPLETED: "ended", FAILED: "ended", CANCELLED: "ended", TIMEOUT: "ended", NODE_FAIL: "ended", OUT_OF_MEMORY: "ended",
};

/** The groups in the order of the list. */
export const GROUPS = ["running", "waiting", "ended"];

const TONE = { RUNNING: "good", SUSPENDED: "wary", PREEMPTED: "wary", FAILED: "bad", TIMEOUT: "bad", NODE_FAIL: "bad", OUT_OF_MEMORY: "bad" };

/** running, waiting or ended. */
export const groupOf = (state) => GROUP[state] || "ended";

/** Whether a job in this state is over. */
export const hasEnded = (state) => groupOf(state) === "ended";

/** A class for its colour. */
export const toneOf = (state) => TONE[state] || "dim";

/** A state as it is shown: out of memory. */
export const stateText = (state) => state.toLowerCase().replaceAll("_", " ");
