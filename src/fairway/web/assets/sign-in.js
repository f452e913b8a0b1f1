// Signing in: by the link that `fairway web` prints, or by a token.

import { tell } from "./bus.js";
import { h } from "./dom.js";
import { signIn } from "./session.js";

/** Shows how to sign in, and why that is needed. */
export function show({ root, refused, ready }) {
  const token = h("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false" });
  const wrong = h("p", { class: "problem", role: "alert", hidden: !refused }, refused);
  const enter = async () => {
    try {
      await signIn({ token: token.value.trim() });
      tell("signed-in");
    } catch (error) {
      wrong.textContent = error.message;
      wrong.hidden = false;
    }
  };
  token.addEventListener("keydown", (event) => { if (event.key === "Enter") enter(); });
  root.append(h("div", { class: "card sign-in" },
    h("h1", {}, "Sign in"), wrong,
    h("p", {}, "On the machine of the scheduler, run"), h("pre", {}, "fairway web"),
    h("p", {}, "and open the link that it prints. A link works once, within ten minutes. ", h("code", {}, "fairway web --read-only"), " makes one for somebody who only looks."),
    h("label", { for: "token" }, "Or sign in with a token"),
    h("div", { class: "inline" }, token, h("button", { type: "button", class: "main", onclick: enter }, "Sign in"))));
  ready();
}
