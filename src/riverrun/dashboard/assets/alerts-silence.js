// The question before a silence: of what, for how long, and why.
import { $, el, setAttribute, setText } from "./dom.js";

const SPANS = [[15, "15 minutes"], [60, "1 hour"], [240, "4 hours"], [480, "8 hours"], [1440, "1 day"], [10080, "7 days"], [43200, "30 days"]];
const USUAL = 60;

// Gives whether it was done; `send` does it, and its error is told in the question.
export function askSilence({ rule, key, rules }, send) {
  const dialog = $("ask");
  const field = (id, label, node, hint) => el("div", { class: "field-row" }, el("label", { for: id }, label), node, hint ? el("p", { class: "hint", id: `${id}-hint` }, hint) : null);
  const choice = (id, options, chosen) => el("select", { id }, ...options.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
  const fault = el("p", { class: "trouble", role: "alert", hidden: true });
  const submit = el("button", { class: "button strong", type: "submit" }, "Silence");
  const keyed = el("input", { id: "ask-key", value: key, maxlength: 200, autocomplete: "off", spellcheck: "false", "aria-describedby": "ask-key-hint" });
  // A field has no line ends; a key may.
  const shown = keyed.value;
  const form = el("form", { method: "dialog", class: "asked" },
    el("h2", { id: "ask-title" }, "Silence alerts"),
    el("p", {}, "Nobody is told while it holds. What fires is in the history all the same."),
    field("ask-rule", "Rule", choice("ask-rule", [["", "Every rule"], ...rules.map((name) => [name, name])], rule)),
    field("ask-key", "Key", keyed, "Empty: every key."),
    field("ask-span", "For", choice("ask-span", SPANS, USUAL)),
    field("ask-why", "Why", el("input", { id: "ask-why", maxlength: 200, autocomplete: "off", placeholder: "For the others who look" })),
    fault,
    el("div", { class: "buttons" }, el("button", { class: "button", type: "button", onclick: () => dialog.close("") }, "Cancel"), submit));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    setAttribute(submit, "disabled", "");
    try {
      await send({ rule: $("ask-rule").value, key: keyed.value === shown ? key : keyed.value, minutes: Number($("ask-span").value), why: $("ask-why").value });
      dialog.close("done");
    } catch (error) {
      fault.hidden = false;
      setText(fault, error.message);
    }
    setAttribute(submit, "disabled", null);
  });
  dialog.replaceChildren(form);
  dialog.returnValue = "";
  dialog.showModal();
  $(key ? "ask-span" : "ask-rule").focus();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "done"), { once: true }));
}
