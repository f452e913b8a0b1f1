// Who is signed in, and what they may do. The secret of a link never stays in the address.

import { call, get, keepSecret } from "./api.js";
import { tell } from "./bus.js";

/** @type {{user: string, role: "read"|"submit"|"operate", operator: boolean}|null} */
let who = null;

/** The person who is signed in, or null. */
export const me = () => who;

function signedIn(told) {
  keepSecret(told.csrf);
  who = { user: told.user, role: told.role, operator: told.operator };
  tell("who");
}

/** Whether there is a session already. */
export async function remembered() {
  try {
    signedIn(await get("/web/session"));
    return true;
  } catch (error) {
    if (error.status === 401) return false;
    throw error;
  }
}

/** Signs in with {link} or {token}; throws what the scheduler says if it refuses. */
export async function signIn(proof) {
  signedIn(await call("POST", "/web/session", { body: proof }));
}

/** Signs out. */
export async function signOut() {
  await call("DELETE", "/web/session");
  forget();
}

/** The session is over. */
export function forget() {
  who = null;
  keepSecret("");
  tell("who");
}

/** Whether a job of this owner may be controlled. */
export const mayControl = (owner) => who !== null && who.role !== "read" && (who.operator || who.user === owner);

/** Whether jobs may be submitted. */
export const maySubmit = () => who !== null && who.role !== "read";
