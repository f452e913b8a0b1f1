// Streams of text that do not end: server-sent events, and logs.

import { ApiError, send } from "./api.js";

/** Calls `took` with each piece of text that comes, until it ends or `signal` is aborted. */
export async function readText(path, took, signal) {
  const answer = await send("GET", path, { signal });
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new ApiError(0, "the scheduler has gone away");
    });
    if (done) return;
    took(decoder.decode(value, { stream: true }));
  }
}

/** Calls `took` with the data of each event, and `heard` whenever anything comes. */
export function readEvents(path, took, heard, signal) {
  let rest = "";
  return readText(path, (text) => {
    heard();
    const parts = (rest + text).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find((line) => line.startsWith("data: "));
      if (data) took(JSON.parse(data.slice(6)));
    }
  }, signal);
}
