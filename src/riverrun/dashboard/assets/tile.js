// A tile: its title, how old its figure is, what is wrong with it, and the chart, or the same as a table.
import { el, setAttribute, setText } from "./dom.js";
import { age, clock, figure, label, moment } from "./format.js";
import { BarTile, LeaderboardTile, StatusTile } from "./bars.js";
import { CandleTile, SeriesTile } from "./series.js";
import { HeatTile } from "./heat.js";
import { NumberTile } from "./number.js";
import { RowsTile } from "./rows.js";
import { words } from "./words.js";

const KINDS = {
  number: NumberTile, line: SeriesTile, area: SeriesTile, bar: BarTile, rows: RowsTile, leaderboard: LeaderboardTile,
  candle: CandleTile, heat_map: HeatTile, status: StatusTile,
};
const SPOKEN = { line: "line chart", area: "area chart", bar: "bar chart", candle: "candle chart", heat_map: "heat map" };
// Kinds that are drawn and not written: they get a description, and a table beside them.
const DRAWN = new Set(["line", "area", "candle", "heat_map"]);

export class TileView {
  constructor(tile, page) {
    this.tile = tile;
    this.page = page;
    this.state = null;
    this.asTable = false;
    this.renderer = null;
    const id = `tile-${tile.name}`;
    this.title = el("h2", { id });
    this.hint = el("span", { class: "hint", "aria-hidden": "true" });
    this.age = el("span", { class: "age" });
    this.swap = el("button", { type: "button", class: "swap", "aria-pressed": "false", onclick: () => this.toggle() }, el("span", { class: "icon icon-table", "aria-hidden": "true" }));
    this.body = el("div", { class: "body" });
    this.note = el("p", { class: "note", hidden: true });
    this.node = el("section", { class: "tile", "data-kind": tile.kind, "data-name": tile.name, "data-w": tile.width, "data-h": tile.height, "aria-labelledby": tile.title ? id : null },
      el("header", { class: "tile-head" }, this.title, this.hint, this.age, this.swap), this.body, this.note);
    this.rename();
    if (tile.kind === "text") return this.write();
    this.swap.hidden = tile.kind === "rows" || tile.kind === "number";
    this.nameSwap();
    this.watcher = new ResizeObserver(() => this.renderer?.resize(this.state?.columns ? this.state : null));
    this.watcher.observe(this.body);
    this.wait("Waiting for the first answer");
  }

  write() {
    this.age.hidden = this.swap.hidden = true;
    if (!this.tile.title) this.node.querySelector(".tile-head").hidden = true;
    this.body.append(...words(this.tile.text));
  }

  // Titles may name a filter: "Houses of {street}".
  rename() {
    const text = this.tile.title.replace(/\{\{|\}\}|\{([^{}]+)\}/g, (all, name) => (name ? label(this.page.filters.get(name)) : all[0]));
    setText(this.title, text);
    this.shownTitle = text;
  }

  nameSwap() {
    setAttribute(this.swap, "aria-label", `${this.shownTitle}: show as a table`);
    setAttribute(this.swap, "title", this.asTable ? "Show the chart" : "Show as a table");
    setAttribute(this.swap, "aria-pressed", String(this.asTable));
  }

  toggle() {
    this.asTable = !this.asTable;
    this.nameSwap();
    this.drop();
    if (this.state?.columns) this.update(this.state);
  }

  drop() {
    this.renderer?.destroy();
    this.renderer = null;
    this.body.replaceChildren();
  }

  wait(text) {
    this.drop();
    this.body.append(el("p", { class: "nothing" }, text));
  }

  update(state) {
    this.state = state;
    setAttribute(this.node, "data-waiting", null);
    this.complain(this.remark(state));
    if (!state.columns) return state.error ? this.wait("No figure") : undefined;
    if (!state.rows.length) return this.wait(this.page.filters.size ? "No rows for this filter" : "No rows yet");
    if (!this.renderer) {
      this.body.replaceChildren();
      this.renderer = new (this.kind(state))(this.body, this.tile, this.page);
    }
    this.renderer.draw(state);
    this.complain(this.remark(state));
    if (!this.asTable) this.describe(state);
  }

  // What is wrong with it, or what is not shown.
  remark(state) {
    if (state.error) return state.error.message;
    const more = state.more && this.tile.kind !== "rows" ? "Only the newest rows are shown: there are too many" : "";
    return [more, this.renderer?.note].filter(Boolean).join(". ");
  }

  kind(state) {
    if (this.asTable) return RowsTile;
    // Bars along a time stand; bars of names lie.
    return this.tile.kind === "bar" && state.x >= 0 ? SeriesTile : KINDS[this.tile.kind];
  }

  // What a chart shows, in words, for those who do not see it. Said when it is asked for, not with each change.
  describe(state) {
    const box = this.body.querySelector(".plot");
    if (!box || !(DRAWN.has(this.tile.kind) || this.tile.kind === "bar")) return;
    const last = state.rows.at(-1);
    const type = state.columns[state.x]?.type;
    const newest = type === "time" ? `, newest ${moment(last[state.x])}` : type === "date" ? `, newest ${last[state.x]}` : "";
    const ends = state.rows.filter((row) => row[state.x] === last[state.x]).slice(0, 12);
    const values = ends.map((row) => `${state.by >= 0 ? `${label(row[state.by])} ` : ""}${state.y.map((at) => figure(row[at], this.tile.decimals)).join(", ")}`);
    setAttribute(box, "role", "img");
    setAttribute(box, "aria-label", `${this.shownTitle}: ${SPOKEN[this.tile.kind]}${newest}: ${values.join("; ")} ${this.tile.unit}`);
  }

  complain(text) {
    this.note.hidden = !text;
    setText(this.note, text);
  }

  recolour() {
    if (!this.renderer || !this.state?.columns) return;
    (this.renderer.recolour ?? this.renderer.draw).call(this.renderer, this.state);
  }

  point(text) {
    setText(this.hint, text ?? "");
    setAttribute(this.node, "data-pointed", text ? "" : null);
  }

  // How old the figure is: since the newest row that is in it came in.
  tick(now, past) {
    if (this.tile.kind === "text") return;
    if (past !== null) {
      setText(this.age, `at ${clock(past)}`);
      setAttribute(this.node, "data-stale", null);
      return;
    }
    const updated = this.state?.updated;
    if (!updated) {
      setText(this.age, "");
      return;
    }
    const old = Math.max(0, now - updated);
    const stale = old > this.tile.stale;
    setText(this.age, stale ? `stale: ${age(old)}` : age(old));
    setAttribute(this.age, "title", `The newest row in it came in at ${clock(updated)}`);
    setAttribute(this.node, "data-stale", stale ? "" : null);
  }

  destroy() {
    this.watcher?.disconnect();
    this.renderer?.destroy();
    this.node.remove();
  }
}
