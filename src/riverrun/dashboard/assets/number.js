// One figure, how it changed, and its way there.
import { el, setAttribute, setText, svg } from "./dom.js";
import { age, clock, figure, moment, sharedPlaces, span } from "./format.js";
import { level } from "./colors.js";

const WORDS = { warn: "warning", bad: "critical" };

export class NumberTile {
  constructor(body, tile) {
    this.tile = tile;
    this.value = el("span", { class: "value" });
    this.unit = el("span", { class: "unit" }, tile.unit);
    this.mark = el("span", { class: "level-mark" });
    this.change = el("p", { class: "change" });
    this.line = svg("path", { class: "spark-line" });
    this.area = svg("path", { class: "spark-area" });
    this.end = svg("circle", { class: "spark-end", r: 2.5 });
    this.spark = svg("svg", { class: "spark", preserveAspectRatio: "none", "aria-hidden": "true" }, this.area, this.line, this.end);
    body.append(
      el("div", { class: "figure-line" }, el("p", { class: "figure" }, this.value, this.unit, this.mark), this.change),
      this.spark,
    );
  }

  draw(state) {
    const rows = state.rows.filter((row) => row[1] !== null);
    const now = state.rows.at(-1)?.[1] ?? null;
    // As many decimals as on its way here: 80.00 after 57.50, not 80.
    this.decimals = this.tile.decimals >= 0 ? this.tile.decimals : sharedPlaces(rows.map((row) => row[1]));
    const text = state.columns[1]?.type === "time" ? moment(now) : figure(now, this.decimals);
    setText(this.value, text);
    const grade = level(now, this.tile.thresholds);
    setAttribute(this.value.parentElement, "data-level", grade || null);
    setText(this.mark, grade ? (grade === "bad" ? "▲ " : "△ ") + WORDS[grade] : "");
    this.drawChange(rows);
    this.drawWay(rows);
  }

  drawChange(rows) {
    const [first, last] = [rows[0], rows.at(-1)];
    // Where the table does not go back that far, the change is over what there is, and says so.
    const over = rows.length > 2 ? last[0] - first[0] : 0;
    const within = over >= this.tile.compare * 0.9 ? span(this.tile.compare) : age(over);
    if (this.tile.compare <= 0 || over < 1000 || typeof first[1] !== "number" || typeof last[1] !== "number") return setText(this.change, "");
    const by = last[1] - first[1];
    const [sign, spoken] = by > 0 ? ["↑", "up"] : by < 0 ? ["↓", "down"] : ["=", "no change"];
    const text = `${by ? ` ${this.sizeOf(by, first[1])}` : ""} vs ${within} ago`;
    setAttribute(this.change, "title", `${figure(first[1], this.decimals)} ${this.tile.unit} at ${clock(first[0])}`.replace("  ", " "));
    if (this.change.textContent === sign + spoken + text) return;
    this.change.replaceChildren(el("span", { "aria-hidden": "true" }, sign), el("span", { class: "unseen" }, spoken), text);
  }

  // Percent of percent says two things at once, and more than double is read better as how much.
  sizeOf(by, before) {
    const size = figure(Math.abs(by), this.decimals);
    if (this.tile.unit === "%") return `${size} points`;
    const share = before ? Math.abs(by / before) * 100 : Infinity;
    return share < 100 ? `${figure(share, share < 10 ? 1 : 0)} %` : `${size} ${this.tile.unit}`.trim();
  }

  drawWay(rows) {
    const points = rows.filter((row) => typeof row[1] === "number");
    const { width, height } = this.spark.getBoundingClientRect();
    setAttribute(this.spark, "data-empty", points.length < 3 || height < 12 ? "" : null);
    if (points.length < 3 || height < 12) return;
    this.spark.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const values = points.map((row) => row[1]);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const [from, to] = [points[0][0], points.at(-1)[0]];
    const x = (at) => ((at - from) / (to - from || 1)) * (width - 4) + 1;
    const y = (value) => height - 4 - ((value - low) / (high - low || 1)) * (height - 8);
    const line = points.map((row, at) => `${at ? "L" : "M"}${x(row[0]).toFixed(1)} ${y(row[1]).toFixed(1)}`).join("");
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", `${line}L${x(to).toFixed(1)} ${height}L${x(from).toFixed(1)} ${height}Z`);
    this.end.setAttribute("cx", x(to).toFixed(1));
    this.end.setAttribute("cy", y(values.at(-1)).toFixed(1));
  }

  resize(state) {
    if (state) this.draw(state);
  }

  destroy() {}
}
