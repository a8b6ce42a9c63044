// Names and how much: bars, leaderboards and lists of states.
import { el, setAttribute, setText } from "./dom.js";
import { level } from "./colors.js";
import { figure, label, sharedPlaces } from "./format.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const SIGNS = { "": "●", warn: "▲", bad: "■" };
const WORDS = { "": "fine", warn: "warning", bad: "critical" };

// A list whose entries keep their element while they keep their name: they move instead of being made anew.
class NamedList {
  constructor(body, tile, page, kind) {
    this.tile = tile;
    this.page = page;
    this.list = el(kind === "leaderboard" ? "ol" : "ul", { class: `entries ${kind}` });
    body.append(el("div", { class: "scroller", tabindex: "0", role: "group", "aria-label": tile.title }, this.list));
    this.entries = new Map();
  }

  draw(state) {
    const y = state.y[0];
    const rows = this.sorted(state.rows, y);
    // What else is said of a name, such as an owner.
    const beside = state.columns.flatMap(({ type }, at) => (type === "text" && at !== state.by ? [at] : []));
    const most = Math.max(0, ...rows.map((row) => Math.abs(Number(row[y])) || 0));
    const before = new Map([...this.entries].map(([name, entry]) => [name, entry.item.offsetTop]));
    const seen = new Set();
    let repeated = 0;
    this.decimals = this.tile.decimals >= 0 ? this.tile.decimals : sharedPlaces(rows.map((row) => row[y]));
    rows.forEach((row, rank) => {
      const name = label(state.by >= 0 ? row[state.by] : rank + 1);
      if (seen.has(name)) {
        repeated += 1;
        return;
      }
      seen.add(name);
      const entry = this.entries.get(name) ?? this.make(name, state.by >= 0 ? row[state.by] : undefined);
      this.entries.set(name, entry);
      this.show(entry, row[y], most, seen.size - 1);
      setText(entry.detail, beside.map((at) => label(row[at])).join(" · "));
      const place = seen.size - 1;
      if (this.list.children[place] !== entry.item) this.list.insertBefore(entry.item, this.list.children[place] ?? null);
    });
    this.note = repeated ? `${repeated} more row${repeated > 1 ? "s have" : " has"} a name that is here already: only the first of a name is shown. Group by it, or name another by=` : "";
    for (const [name, entry] of this.entries) {
      if (seen.has(name)) continue;
      entry.item.remove();
      this.entries.delete(name);
    }
    this.glide(before);
  }

  sorted(rows) {
    return rows;
  }

  make(name, value) {
    const entry = { rank: el("span", { class: "rank", "aria-hidden": "true" }), fill: el("span", { class: "fill", "aria-hidden": "true" }) };
    entry.sign = el("span", { class: "sign" });
    entry.value = el("span", { class: "entry-value" });
    entry.detail = el("span", { class: "entry-detail" });
    const inner = [entry.fill, entry.rank, entry.sign, el("span", { class: "entry-name" }, name), entry.detail, entry.value];
    entry.inner = this.tile.by && value !== undefined
      ? el("button", { type: "button", class: "entry", "aria-pressed": "false", onclick: () => this.page.drill(this.tile.by, value) }, ...inner)
      : el("span", { class: "entry" }, ...inner);
    entry.key = value;
    entry.item = el("li", {}, entry.inner);
    return entry;
  }

  show(entry, value, most, rank) {
    const grade = level(value, this.tile.thresholds);
    setText(entry.rank, String(rank + 1));
    setText(entry.value, figure(value, this.decimals) + (this.tile.unit ? ` ${this.tile.unit}` : ""));
    setAttribute(entry.inner, "data-level", grade || null);
    setText(entry.sign, grade ? SIGNS[grade] : "");
    setAttribute(entry.sign, "title", grade ? WORDS[grade] : null);
    if (entry.inner.tagName === "BUTTON") {
      const picked = this.page.filters.has(this.tile.by) && String(this.page.filters.get(this.tile.by)) === String(entry.key);
      setAttribute(entry.inner, "aria-pressed", String(picked));
    }
    const share = most ? Math.max(0, Number(value) || 0) / most : 0;
    entry.fill.style.transform = `scaleX(${share.toFixed(4)})`;
  }

  // From where each was to where it is.
  glide(before) {
    if (calm.matches || document.hidden) return;
    for (const [name, entry] of this.entries) {
      const was = before.get(name);
      const by = was === undefined ? 0 : was - entry.item.offsetTop;
      if (by) entry.item.animate([{ transform: `translateY(${by}px)` }, { transform: "none" }], { duration: 200, easing: "ease-out" });
    }
  }

  resize() {}

  destroy() {}
}

export class BarTile extends NamedList {
  constructor(body, tile, page) {
    super(body, tile, page, "bar");
  }
}

export class LeaderboardTile extends NamedList {
  constructor(body, tile, page) {
    super(body, tile, page, "leaderboard");
  }
}

export class StatusTile extends NamedList {
  // In several columns there is no way from one place to another that would not cross the rest.
  glide() {}

  constructor(body, tile, page) {
    super(body, tile, page, "status");
    this.summary = el("p", { class: "summary" });
    body.prepend(this.summary);
  }

  draw(state) {
    super.draw(state);
    const counts = { bad: 0, warn: 0, "": 0 };
    for (const row of state.rows) counts[level(row[state.y[0]], this.tile.thresholds)] += 1;
    this.summary.replaceChildren(...["bad", "warn", ""].map((grade) =>
      el("span", { class: "count", "data-level": grade || "fine" }, el("span", { "aria-hidden": "true" }, SIGNS[grade]), ` ${counts[grade]} ${WORDS[grade]}`)));
  }

  show(entry, value, most, rank) {
    super.show(entry, value, most, rank);
    const grade = level(value, this.tile.thresholds);
    setText(entry.sign, SIGNS[grade]);
    setAttribute(entry.sign, "title", WORDS[grade]);
    setAttribute(entry.sign, "role", "img");
    setAttribute(entry.sign, "aria-label", WORDS[grade]);
  }
}
