// Rows as a table: a tile of its own, and what every chart is for those who would rather read it.
import { el, setAttribute, setText } from "./dom.js";
import { level } from "./colors.js";
import { cell, columnForm, label, whole } from "./format.js";

const MOST = 500;

export class RowsTile {
  constructor(body, tile, page) {
    this.tile = tile;
    this.page = page;
    this.head = el("thead");
    this.body = el("tbody");
    this.more = el("p", { class: "more", hidden: true });
    body.append(el("div", { class: "scroller", tabindex: "0", role: "group", "aria-label": `${tile.title}, as a table` },
      el("table", {}, el("caption", { class: "unseen" }, tile.title), this.head, this.body), this.more));
    this.shape = "";
  }

  draw(state) {
    const shape = JSON.stringify([state.columns, this.page.filters.size]);
    if (shape !== this.shape) {
      this.shape = shape;
      this.head.replaceChildren(el("tr", {}, ...state.columns.map(({ name, type }) => el("th", { scope: "col", "data-type": type, title: name }, name.replaceAll("_", " ")))));
      this.body.replaceChildren();
    }
    // A chart's rows go from old to new; a reader wants the newest first.
    const along = state.x >= 0 && ["time", "date"].includes(state.columns[state.x].type) && this.tile.kind !== "rows";
    const all = along ? state.rows.slice().reverse() : state.rows;
    const rows = all.slice(0, MOST);
    this.forms = state.columns.map(({ type }, at) => columnForm(rows.map((row) => row[at]), type, state.y.includes(at) ? this.tile.decimals : -1));
    while (this.body.rows.length > rows.length) this.body.lastElementChild.remove();
    rows.forEach((row, at) => {
      const line = this.body.rows[at] ?? this.body.appendChild(el("tr", {}, ...state.columns.map(({ type }) => el("td", { "data-type": type }))));
      row.forEach((value, number) => this.cell(line.cells[number], value, number, state));
    });
    this.more.hidden = rows.length === all.length && !state.more;
    if (!this.more.hidden) setText(this.more, state.more ? `The newest ${all.length} rows; there are more.` : `The first ${rows.length} of ${all.length} rows.`);
  }

  cell(box, value, number, state) {
    const { type } = state.columns[number];
    const text = cell(value, type, this.forms[number]);
    setAttribute(box, "title", whole(value, type, text));
    if (state.y.includes(number)) box.dataset.level = level(value, this.tile.thresholds);
    if (number !== state.by || !this.tile.by) return setText(box, text);
    const button = box.firstElementChild ?? box.appendChild(el("button", { type: "button", class: "cell" }));
    setText(button, label(value));
    button.onclick = () => this.page.drill(this.tile.by, value);
    const picked = this.page.filters.has(this.tile.by) && String(this.page.filters.get(this.tile.by)) === String(value);
    button.setAttribute("aria-pressed", String(picked));
  }

  resize() {}

  destroy() {}
}
