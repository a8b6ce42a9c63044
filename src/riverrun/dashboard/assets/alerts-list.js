// Lists whose rows are made once and replaced only when they change: a button that has the focus keeps it.
import { el } from "./dom.js";
import { at, coverOf, dotted, lasted, named, plain, sentOf, sign, since, stateOf, toOf } from "./alerts-words.js";

const pointer = matchMedia("(hover: hover)");

export class List {
  // `still`: while a pointer is over the list nothing in it moves, so that nobody acknowledges what has just slipped under it.
  constructor(box, title, make, still = false) {
    Object.assign(this, { box, title, make, rows: new Map(), items: [] });
    this.still = () => still && pointer.matches && box.matches(":hover");
    if (still) box.addEventListener("pointerleave", () => this.fill(this.items));
  }

  fill(items) {
    this.items = items;
    const wanted = this.still() ? this.unmoved(items) : items;
    this.keep(new Set(wanted.map(([id]) => id)));
    wanted.forEach(([id, item], place) => {
      const row = item ? this.row(id, item) : this.gone(id);
      const there = this.box.children[place] ?? null;
      if (there !== row.node) this.box.insertBefore(row.node, there);
    });
    this.box.hidden = !wanted.length;
  }

  // What is shown stays where it is, gone or not; what is new comes below.
  unmoved(items) {
    const known = new Map(items);
    const shown = [...this.box.children].map((node) => node.dataset.id);
    return [...shown.map((id) => [id, known.get(id)]), ...items.filter(([id]) => !this.rows.has(id))];
  }

  keep(wanted) {
    for (const [id, { node }] of this.rows) {
      if (wanted.has(id)) continue;
      const focused = node.contains(document.activeElement);
      node.remove();
      this.rows.delete(id);
      if (focused) this.title.focus({ preventScroll: true });
    }
  }

  row(id, item) {
    const mark = JSON.stringify(item);
    const before = this.rows.get(id);
    if (before?.mark === mark) return before;
    const row = { node: this.make(id, item), mark };
    if (before) swap(before.node, row.node);
    this.rows.set(id, row);
    return row;
  }

  gone(id) {
    const row = this.rows.get(id);
    if (row.node.contains(document.activeElement)) this.title.focus({ preventScroll: true });
    row.node.inert = true;
    row.mark = "";
    return row;
  }
}

function swap(old, node) {
  const focused = old.contains(document.activeElement) ? document.activeElement.dataset.does : null;
  old.replaceWith(node);
  if (focused) (node.querySelector(`[data-does="${focused}"]`) ?? node.querySelector("button"))?.focus({ preventScroll: true });
}

const button = (does, text, about, onclick, style = "") => el("button", { type: "button", class: `button ${style}`.trim(), "data-does": does, "aria-label": `${text} ${about}`, onclick }, text);

const opener = (id, it, open) => el("button", { type: "button", class: "case-open", "data-does": "open", onclick: () => open(id) }, named(it));

function row(id, it, open, ...parts) {
  return el("li", { class: "case", "data-id": id, "data-severity": it.severity, "data-acked": Boolean(it.ack), onclick: (event) => !event.target.closest("button") && !String(getSelection()) && open(id) }, ...parts);
}

export function firing({ open, acknowledge, silence, now }) {
  return (id, it) => row(id, it, open,
    sign(it.severity),
    el("div", { class: "case-main" },
      el("p", { class: "case-head" }, opener(id, it, open), el("span", { class: "case-age" }, since(it.made))),
      it.text ? el("p", { class: "case-text" }, plain(it.text)) : null,
      el("p", { class: "case-meta" }, ...about(it, now()))),
    el("div", { class: "case-do" },
      it.state !== "firing" || it.ack ? null : button("acknowledge", "Acknowledge", named(it), (event) => acknowledge(it, event.currentTarget), it.list === "held" ? "" : "main"),
      it.silence ? null : button("silence", "Silence…", named(it), () => silence(it))));
}

function about(it, now) {
  const parts = [`since ${at(it.made, now)}`, toOf(it), ...sentOf(it.sent)];
  if (it.until) parts.push(`until ${at(it.until, now)}`);
  if (it.silence) parts.push(el("span", { class: "mark-of" }, `silenced by ${plain(it.silence.by) || "somebody"} until ${at(it.silence.until, now)}${it.silence.why ? `: ${plain(it.silence.why)}` : ""}`));
  else if (it.reason) parts.push(plain(it.reason));
  if (it.escalated) parts.push(el("span", { class: "mark-of" }, "escalated"));
  if (it.ack) parts.push(el("span", { class: "mark-of", "data-tone": "good" }, `acknowledged by ${plain(it.ack.by) || "somebody"} at ${at(it.ack.at, now)}`));
  return dotted(...parts);
}

export function past({ open, now }) {
  return (id, it) => row(id, it, open,
    sign(it.severity),
    el("time", { class: "when", datetime: new Date(it.made).toISOString() }, at(it.made, now())),
    el("p", { class: "case-head" }, opener(id, it, open), it.text ? el("span", { class: "case-text" }, plain(it.text)) : null),
    el("span", { class: "lasted" }, it.state === "once" ? "once" : lasted(it.ended - it.made)),
    el("p", { class: "case-meta" }, ...dotted(...sentOf(it.sent))));
}

export function dead({ open, now }) {
  return (id, it) => el("li", { class: "case", "data-id": id },
    el("div", { class: "case-main" },
      el("p", { class: "case-head" }, el("button", { type: "button", class: "case-open", "data-does": "open", onclick: () => open(it) }, named(it)), el("span", { class: "case-age" }, at(it.at, now()))),
      el("p", { class: "case-reason" }, plain(it.reason) || "no reason was given"),
      el("p", { class: "case-meta" }, ...dotted(stateOf(it.state), it.to ? `to ${plain(it.to)}` : "to nobody", it.channel, it.kind === "fired" ? "" : it.kind))));
}

export function silenced({ end, now }) {
  return (id, it) => el("li", { class: "case", "data-id": id },
    el("div", { class: "case-main" },
      el("p", { class: "case-head" }, el("b", {}, coverOf(it))),
      it.why ? el("p", { class: "case-text" }, plain(it.why)) : null,
      el("p", { class: "case-meta" }, ...dotted(`until ${at(it.until, now())}`, it.by && `by ${plain(it.by)}`))),
    el("div", { class: "case-do" }, button("end", "End now", coverOf(it), (event) => end(it, event.currentTarget))));
}
