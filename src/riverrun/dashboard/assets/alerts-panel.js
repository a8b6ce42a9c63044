// The side panel: why a case fired, the row behind it, and what became of its messages. Asked for when it opens and when it changes.
import { at, dotted, lasted, named, plain, sign, stateOf } from "./alerts-words.js";
import { $, el, setAttribute } from "./dom.js";
import { clock, day } from "./format.js";
import { fetchJson } from "./pipeline-parts.js";

const KINDS = { fired: "It fired", resolved: "It is over", escalated: "Nobody acknowledged", digest: "Digest" };

export class Panel {
  constructor({ now, close, acknowledge, silence }) {
    Object.assign(this, { now, close, acknowledge, silence, shown: "", asked: null });
  }

  show(id, place, byHand) {
    this.asked?.abort();
    this.shown = id;
    this.place = place;
    $("panel").hidden = !id;
    if (!id) return $("panel").replaceChildren();
    this.title = el("h2", { id: "panel-title", tabindex: "-1" }, named(place));
    this.body = el("div", { class: "more" });
    $("panel").replaceChildren(
      el("div", { class: "panel-head" },
        el("p", { class: "panel-kind" }, "Alert"),
        el("button", { type: "button", class: "button quiet", "aria-label": "Close", title: "Close (Escape)", onclick: this.close }, "×")),
      this.title, this.body);
    this.ask();
    if (byHand) this.title.focus({ preventScroll: true });
  }

  async ask() {
    if (!this.shown) return;
    this.asked?.abort();
    this.asked = new AbortController();
    const { signal } = this.asked;
    const { rule, key, number } = this.place;
    setAttribute(this.body, "aria-busy", "true");
    let made;
    try {
      made = this.parts(await fetchJson(`/api/alerts/case/${encodeURIComponent(rule)}/${number}?${new URLSearchParams({ key })}`, { signal }));
    } catch (error) {
      if (signal.aborted) return;
      made = [el("p", { class: "trouble" }, error.message)];
    }
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.does : null;
    setAttribute(this.body, "aria-busy", null);
    this.body.replaceChildren(...made.filter(Boolean));
    if (focused) (this.body.querySelector(`[data-does="${focused}"]`) ?? this.title).focus({ preventScroll: true });
  }

  parts(it) {
    const now = this.now();
    const fires = it.state === "firing";
    return [
      el("p", { class: "state", "data-severity": it.severity }, sign(it.severity), el("span", {}, `${it.severity}, ${fires ? "firing" : it.state === "once" ? "fired once" : "over"}`)),
      fires ? el("div", { class: "panel-do" },
        it.ack ? null : el("button", { type: "button", class: "button strong", "data-does": "acknowledge", onclick: (event) => this.acknowledge(it, event.currentTarget) }, "Acknowledge"),
        it.silence ? null : el("button", { type: "button", class: "button", "data-does": "silence", onclick: () => this.silence(it) }, "Silence…")) : null,
      facts([
        ["True since", stamp(it.since)], ["Fired at", it.at === it.since ? null : stamp(it.at)], ["Noticed", `${stamp(it.made)}${late(it)}`],
        ["Over", it.ended > 0 ? `${stamp(it.ended)}, after ${lasted(it.ended - it.made)}` : null],
        ["Escalated", it.escalated > 0 ? stamp(it.escalated) : null],
        ["Acknowledged", it.ack ? `by ${plain(it.ack.by) || "somebody"} at ${at(it.ack.at, now)}` : null],
        ["Silenced", it.silence && fires ? `by ${plain(it.silence.by) || "somebody"} until ${at(it.silence.until, now)}${it.silence.why ? `: ${plain(it.silence.why)}` : ""}` : null],
        ["Episode", `no. ${it.number} of this key`],
      ]),
      el("section", {}, el("h3", {}, "The row behind it"), rowOf(it), el("p", { class: "place" }, el("b", {}, plain(it.place)))),
      el("section", {}, el("h3", {}, "Messages"), ...(it.letters.length ? it.letters.map((each) => letter(each, now)) : [el("p", { class: "nothing" }, "None was written.")])),
    ];
  }
}

const stamp = (ms) => `${day(ms)} ${clock(ms)}`;

// How long after the row was written: only when somebody would wonder.
const late = ({ made, recorded }) => (made - recorded > 10000 ? `, ${lasted(made - recorded)} after it was written` : "");

function facts(rows) {
  return el("dl", { class: "facts" }, ...rows.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function rowOf({ row }) {
  if (!row.length) return el("p", { class: "nothing" }, "It has no columns.");
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The row behind it" }, el("table", {},
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Column"), el("th", { scope: "col" }, "Value"))),
    el("tbody", {}, ...row.map((it) => el("tr", {}, el("th", { scope: "row" }, plain(it.name)), el("td", {}, it.value === null ? el("i", { class: "null" }, "none") : plain(it.value), it.cut ? el("i", { class: "cut" }, " …") : null))))));
}

function letter(it, now) {
  const said = [`written ${at(it.made, now)}`];
  if (["held", "gathering"].includes(it.stage)) said.push(`until ${at(it.until, now)}`);
  if (it.at) said.push(`${it.state} ${clock(it.at)}`);
  if (it.tries) said.push(`${it.tries} ${it.tries === 1 ? "try" : "tries"}`);
  if (it.again > now) said.push(`again at ${clock(it.again)}`);
  if (it.parts > 1) said.push(`${it.parts} parts`);
  const why = [it.note, ["sent", "delivered"].includes(it.state) ? "" : it.reason].filter(Boolean).map(plain);
  return el("article", { class: "letter" },
    el("p", { class: "letter-head" }, el("b", {}, it.to ? plain(it.to) : "nobody"), el("span", { class: "hint" }, `${it.channel} · ${KINDS[it.kind] ?? it.kind}`), stateOf(it.state)),
    el("p", { class: "bubble" }, plain(it.text)),
    ...why.map((text) => el("p", { class: "case-reason" }, text)),
    el("p", { class: "hint" }, ...dotted(...said)));
}
