// A field of colours: one column for each x, one row for each group.
import { el, fit, font } from "./dom.js";
import { heat, ink } from "./colors.js";
import { figure, label, moment } from "./format.js";


export class HeatTile {
  constructor(body, tile, page) {
    this.tile = tile;
    this.page = page;
    this.canvas = el("canvas", { class: "heat" });
    this.low = el("span");
    this.high = el("span");
    this.box = el("div", { class: "plot" }, this.canvas);
    body.append(el("div", { class: "heat-box" }, this.box, el("p", { class: "scale", "aria-hidden": "true" }, this.low, el("span", { class: "scale-bar" }), this.high)));
    this.box.addEventListener("pointermove", (event) => this.follow(event));
    this.box.addEventListener("pointerleave", () => this.page.pointAt(this.box, null));
    this.box.addEventListener("click", (event) => this.pick(event));
  }

  draw(state) {
    const y = state.y[0];
    this.type = state.columns[state.x].type;
    this.xs = [...new Set(state.rows.map((row) => row[state.x]))];
    this.groups = [...new Set(state.rows.map((row) => (state.by >= 0 ? row[state.by] : "")))];
    this.groups.sort((one, other) => label(one).localeCompare(label(other), undefined, { numeric: true }));
    const [column, line] = [new Map(this.xs.map((x, at) => [x, at])), new Map(this.groups.map((group, at) => [group, at]))];
    this.cells = this.groups.map(() => new Array(this.xs.length).fill(null));
    let [low, high] = [Infinity, -Infinity];
    let repeated = 0;
    for (const row of state.rows) {
      const value = row[y] === null ? null : Number(row[y]);
      if (value === null || !Number.isFinite(value)) continue;
      const cells = this.cells[line.get(state.by >= 0 ? row[state.by] : "")];
      if (cells[column.get(row[state.x])] !== null) repeated += 1;
      cells[column.get(row[state.x])] = value;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    const left = state.groups_left_out ?? 0;
    this.note = [
      left ? `${this.groups.length} of ${this.groups.length + left} rows are drawn, the largest; ${left} ${left === 1 ? "is" : "are"} left out` : "",
      repeated ? `${repeated} rows have a place that another row has: only the last is drawn. Group by both` : "",
    ].filter(Boolean).join(". ");
    this.paint(low, high);
  }

  paint(low, high) {
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    const pen = fit(this.canvas, width, height);
    const colours = ink();
    const foot = 2.2 * parseFloat(font());
    pen.font = font();
    pen.textAlign = "left";
    const left = Math.min(width * 0.35, Math.max(0, ...this.groups.map((group) => pen.measureText(label(group)).width)) + 10);
    const [wide, tall] = [(width - left - 6) / (this.xs.length || 1), (height - foot) / (this.groups.length || 1)];
    this.place = { left, wide, tall };
    const gap = wide > 6 && tall > 6 ? 1 : 0;
    this.cells.forEach((row, at) => row.forEach((value, number) => {
      if (value === null) return;
      pen.fillStyle = heat(high > low ? (value - low) / (high - low) : 0.5);
      pen.fillRect(left + number * wide, at * tall, wide - gap + (gap ? 0 : 0.5), tall - gap + (gap ? 0 : 0.5));
    }));
    pen.fillStyle = colours.muted;
    pen.textBaseline = "middle";
    // Where rows are lower than letters, only some have their names.
    const every = Math.ceil(13 / tall);
    this.groups.forEach((group, at) => at % every === 0 && pen.fillText(clipped(pen, label(group), left - 10), 0, at * tall + tall / 2));
    pen.textAlign = "center";
    const step = Math.ceil(56 / wide);
    this.xs.forEach((x, at) => {
      const middle = left + (at + 0.5) * wide;
      if (at % step === 0 && middle < width - 16) pen.fillText(this.name(x), middle, height - foot / 2 + 2);
    });
    this.low.textContent = Number.isFinite(low) ? figure(low, this.tile.decimals) : "";
    this.high.textContent = Number.isFinite(high) ? `${figure(high, this.tile.decimals)} ${this.tile.unit}` : "";
  }

  name(x) {
    return this.type === "time" ? moment(x, this.xs.at(-1)) : label(x);
  }

  under(event) {
    if (!this.place) return null;
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [Math.floor((event.clientX - box.left - this.place.left) / this.place.wide), Math.floor((event.clientY - box.top) / this.place.tall)];
    return this.cells[y]?.[x] === undefined || x < 0 ? null : { x, y };
  }

  follow(event) {
    const at = this.under(event);
    this.page.pointAt(this.box, at && `${label(this.groups[at.y])}   ${this.name(this.xs[at.x])}   ${figure(this.cells[at.y][at.x], this.tile.decimals)} ${this.tile.unit}`);
  }

  pick(event) {
    const at = this.under(event);
    if (at && this.tile.by) this.page.drill(this.tile.by, this.groups[at.y]);
  }

  resize(state) {
    if (state) this.draw(state);
  }

  destroy() {}
}

function clipped(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let short = text;
  while (short.length > 1 && pen.measureText(`${short}…`).width > width) short = short.slice(0, -1);
  return `${short}…`;
}
