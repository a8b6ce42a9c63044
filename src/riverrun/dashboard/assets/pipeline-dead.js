// Dead letters of a topic: why, which, and sending them back after a question.
import { $, el, setAttribute, setText } from "./dom.js";
import { clock, day } from "./format.js";
import { fetchJson, headersOf, valueOf } from "./pipeline-parts.js";
import { count } from "./pipeline-words.js";

export class DeadLetters {
  constructor(topic, signal) {
    this.topic = topic;
    this.signal = signal;
    this.said = el("p", { class: "outcome", role: "status" });
    this.body = el("div", {});
    this.box = el("section", { class: "dead" }, el("h3", {}, `Dead letters of ${topic}`), this.said, this.body);
    this.load();
  }

  get address() {
    return `/api/pipeline/topic/${encodeURIComponent(this.topic)}`;
  }

  async load() {
    try {
      const found = await fetchJson(`${this.address}/dead`, { signal: this.signal });
      this.body.replaceChildren(...this.parts(found));
    } catch (error) {
      if (!this.signal.aborted) this.body.replaceChildren(el("p", { class: "trouble" }, error.message));
    }
  }

  parts(found) {
    if (!found.total) return [el("p", {}, "None.")];
    const looked = found.looked < found.total ? ` of the newest ${count(found.looked)}` : "";
    return [
      el("p", {}, `${count(found.total)} letters; ${count(found.waiting)}${looked} were not sent back yet.`),
      el("ul", { class: "reasons" }, ...found.reasons.map((each) => el("li", {},
        el("span", { class: "reason" }, each.reason), el("span", { class: "hint" }, `${count(each.letters)} letters, ${count(each.waiting)} waiting`),
        each.waiting ? this.button("Re-drive these", { reason: each.reason }, `all letters of this reason: ${each.reason}`) : null))),
      found.waiting ? this.button("Re-drive all", {}, `all dead letters of ${this.topic}`) : null,
      el("div", { class: "letters" }, ...found.letters.map((each) => this.letter(each))),
    ].filter(Boolean);
  }

  letter(it) {
    return el("details", { class: "letter" },
      el("summary", {}, el("b", {}, it.from), ` ${day(it.at)} ${clock(it.at)}`, it.redriven ? el("span", { class: "chip-done" }, "re-driven") : null, el("span", { class: "reason" }, it.reason)),
      el("p", { class: "message" }, `${it.error}: ${it.message}`),
      el("p", { class: "key" }, "key ", valueOf(it.key)),
      el("pre", {}, valueOf(it.value)),
      headersOf(it.headers),
      el("p", { class: "hint" }, `${it.place}${it.group ? `, given up by ${it.group}` : ""}${it.attempts > 1 ? ` after ${it.attempts} attempts` : ""}`),
      it.redriven ? null : this.button("Re-drive this one", { partition: it.partition, offset: it.offset }, `the letter ${it.place}`));
  }

  button(text, choice, what) {
    return el("button", { type: "button", class: "button", onclick: (event) => this.begin(event.currentTarget, choice, what) }, text);
  }

  post(choice, dryRun) {
    return fetchJson(`${this.address}/redrive`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ ...choice, dry_run: dryRun }), signal: this.signal });
  }

  // First it is gone through without sending: the question says what would happen.
  async begin(button, choice, what) {
    setAttribute(button, "disabled", "");
    try {
      const plan = await this.post(choice, true);
      if (!total(plan.sent)) return this.say(`Nothing can be sent: ${leftOf(plan) || "they were re-driven before."}`);
      if (await this.agreed(plan, what)) {
        const done = await this.post(choice, false);
        this.say(`${records(done.sent)} sent back to ${Object.keys(done.sent).join(", ")}. ${leftOf(done)}`);
        await this.load();
      } else this.say("Nothing was sent.");
    } catch (error) {
      if (!this.signal.aborted) this.say(error.message);
    } finally {
      setAttribute(button, "disabled", null);
      if (button.isConnected) button.focus();
    }
  }

  say(text) {
    setText(this.said, text);
  }

  agreed(plan, what) {
    const dialog = $("ask");
    const lines = Object.entries(plan.sent).map(([topic, number]) => `${records({ topic: number })} go to ${topic}. All readers of it get them.`);
    dialog.replaceChildren(el("form", { method: "dialog" },
      el("h2", { id: "ask-title" }, "Send them back?"),
      el("p", {}, `Meant are ${what}.`),
      ...lines.map((line) => el("p", {}, line)),
      el("p", {}, plan.checked ? "Each value was checked: it is an event of its topic's type." : "Values are not checked: no type is declared."),
      leftOf(plan) ? el("p", {}, leftOf(plan)) : null,
      el("div", { class: "buttons" },
        el("button", { class: "button", value: "no", autofocus: true }, "Cancel"),
        el("button", { class: "button strong", value: "yes" }, `Send ${records(plan.sent)}`))));
    dialog.returnValue = "no";
    dialog.showModal();
    return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true }));
  }
}

const total = (numbers) => Object.values(numbers).reduce((sum, each) => sum + each, 0);

const records = (numbers) => `${count(total(numbers))} ${total(numbers) === 1 ? "record" : "records"}`;

function leftOf(outcome) {
  const said = Object.entries(outcome.left).map(([why, number]) => `${count(number)} stay: ${why}.`);
  if (outcome.redriven_before) said.push(`${count(outcome.redriven_before)} were re-driven before.`);
  if (outcome.most) said.push("There are more: ask again for the rest.");
  return said.join(" ");
}
