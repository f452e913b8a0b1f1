// Requests to the scheduler. Errors are one line of text that can be shown as it is.

import { tell } from "./bus.js";

/** An answer that is not a success. `status` 0 means that nobody answered. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const secret = { csrf: "" };

/** Keeps the secret that requests with an effect carry. */
export const keepSecret = (csrf) => { secret.csrf = csrf; };

/** Sends a request; the answer has its body unread. */
export async function send(method, path, { body, signal, headers } = {}) {
  const all = { ...headers };
  if (method !== "GET") all["X-Fairway-CSRF"] = secret.csrf;
  if (body !== undefined) all["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers: all, signal, credentials: "same-origin", body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    tell("lost");
    throw new ApiError(0, "the scheduler does not answer");
  }
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  if (answer.status === 401 && path !== "/web/session") tell("signed-out");
  throw new ApiError(answer.status, told.error || `the scheduler answered ${answer.status}`);
}

/** Sends a request; gives the JSON of its answer. */
export async function call(method, path, options) {
  const answer = await send(method, path, options);
  return answer.json();
}

/** What is at a path. */
export const get = (path, signal) => call("GET", path, { signal });

/** Runs `act` and tells `failed` one line if it does not work; a view that was left is no failure. */
export async function attempt(act, failed) {
  try {
    return await act();
  } catch (error) {
    if (error.name === "AbortError") return undefined;
    if (!(error instanceof ApiError)) throw error;
    return failed(error);
  }
}
