// An answer: as a table in pages, sorted by a click, or as a chart.
import { el, setAttribute, setText } from "./dom.js";
import { BarTile } from "./bars.js";
import { SeriesTile } from "./series.js";

const PAGE = 100;
const MOST_LETTERS = 1000;
const MOST_BARS = 60;
const TIMES = new Set(["timestamp", "date"]);
const isNumber = (type) => type === "bigint" || type === "double" || type.startsWith("decimal");

// Any value as text: all digits that tell it apart, times in UTC as questions write them.
export function shown(value, type) {
  if (type === "double") return Number.isFinite(value) ? String(Number(value.toPrecision(12))) : String(value);
  if (type === "timestamp") return String(value).replace("T", " ").replace(/Z$/, "");
  const text = String(value);
  return text.length > MOST_LETTERS ? `${text.slice(0, MOST_LETTERS)}… (${text.length} letters)` : text;
}

function compare(type) {
  const big = (value) => (/^-?\d+$/.test(value) ? BigInt(value) : Number(value));
  const key = type === "timestamp" ? (value) => value.replace(/Z$/, "") : type === "bigint" ? big : isNumber(type) ? Number : (value) => value;
  return (one, other) => {
    // NULL is the smallest, as in the store.
    if (one === null || other === null) return (one === null ? 0 : 1) - (other === null ? 0 : 1);
    const [left, right] = [key(one), key(other)];
    return left < right ? -1 : left > right ? 1 : 0;
  };
}

export class Answer {
  constructor({ columns, rows, more, seconds }) {
    this.columns = columns;
    this.more = more;
    this.seconds = Number(seconds);
    this.rows = rows.map((row) => columns.map(({ name, type }) => (row[name] !== null && type === "double" ? Number(row[name]) : row[name])));
  }
}

export class TableView {
  constructor(box) {
    this.head = el("thead");
    this.body = el("tbody");
    this.caption = el("caption", { class: "unseen" });
    this.first = this.turn("«", "First page", () => this.go(0));
    this.back = this.turn("‹", "Page before", () => this.go(this.page - 1));
    this.on = this.turn("›", "Next page", () => this.go(this.page + 1));
    this.last = this.turn("»", "Last page", () => this.go(this.pages - 1));
    this.where = el("span", { class: "where" });
    this.pager = el("nav", { class: "pager", "aria-label": "Pages of the answer" }, this.first, this.back, this.where, this.on, this.last);
    this.scroller = el("div", { class: "scroller", tabindex: "0", role: "group", "aria-label": "Answer, as a table" }, el("table", {}, this.caption, this.head, this.body));
    // A text that is cut unfolds by a click.
    this.body.addEventListener("click", (event) => event.target.closest("td")?.toggleAttribute("data-whole"));
    box.replaceChildren(this.scroller, this.pager);
  }

  turn(sign, name, onclick) {
    return el("button", { type: "button", class: "button quiet", "aria-label": name, title: name, onclick }, sign);
  }

  draw(answer) {
    this.answer = answer;
    this.rows = answer.rows;
    this.sort = { at: -1, down: false };
    setText(this.caption, `${answer.rows.length} rows`);
    this.head.replaceChildren(el("tr", {}, ...answer.columns.map(({ name, type }, at) => el("th", { scope: "col", "data-type": isNumber(type) ? "number" : type },
      el("button", { type: "button", class: "sort", onclick: () => this.sortBy(at) }, el("span", { class: "sort-name" }, name), el("span", { class: "type" }, type), el("span", { class: "arrow", "aria-hidden": "true" }))))));
    this.go(0);
  }

  // Once up, once down, then as it came.
  sortBy(at) {
    const { at: before, down } = this.sort;
    this.sort = before !== at ? { at, down: false } : down ? { at: -1, down: false } : { at, down: true };
    const by = this.sort.at >= 0 ? compare(this.answer.columns[at].type) : null;
    const sign = this.sort.down ? -1 : 1;
    this.rows = by ? this.answer.rows.slice().sort((one, other) => sign * by(one[at], other[at])) : this.answer.rows;
    [...this.head.rows[0].cells].forEach((cell, number) => {
      const chosen = number === this.sort.at;
      setAttribute(cell, "aria-sort", chosen ? (this.sort.down ? "descending" : "ascending") : null);
      setText(cell.querySelector(".arrow"), chosen ? (this.sort.down ? "▼" : "▲") : "");
    });
    this.go(0);
  }

  get pages() {
    return Math.max(1, Math.ceil(this.rows.length / PAGE));
  }

  go(page) {
    this.page = Math.min(this.pages - 1, Math.max(0, page));
    const from = this.page * PAGE;
    const rows = this.rows.slice(from, from + PAGE);
    this.body.replaceChildren(...rows.map((row) => el("tr", {}, ...row.map((value, at) => this.cell(value, this.answer.columns[at].type)))));
    this.scroller.scrollTop = 0;
    this.pager.hidden = this.pages < 2;
    const count = (number) => number.toLocaleString();
    setText(this.where, `${count(from + 1)} to ${count(from + rows.length)} of ${count(this.rows.length)}`);
    this.first.disabled = this.back.disabled = this.page === 0;
    this.on.disabled = this.last.disabled = this.page === this.pages - 1;
  }

  cell(value, type) {
    const kind = isNumber(type) ? "number" : type;
    if (value === null || value === undefined) return el("td", { "data-type": kind, class: "null" }, "null");
    return el("td", { "data-type": kind }, shown(value, type));
  }

  recolour() {}

  destroy() {}
}

// What a chart of these columns would be: along a time, along a number, or of names. Null where there is none.
export function plan(columns, rows) {
  const find = (test, not = []) => columns.findIndex(({ type }, at) => test(type) && !not.includes(at));
  const time = find((type) => TIMES.has(type));
  const word = find((type) => type === "text" || type === "boolean");
  const numbers = columns.flatMap(({ type }, at) => (isNumber(type) ? [at] : []));
  if (!numbers.length || !rows.length) return null;
  if (time >= 0) {
    // One row for each time is a line for each number; several are a line for each name.
    const many = word >= 0 && new Set(rows.map((row) => row[time])).size < rows.length;
    return { kind: "line", x: time, y: many ? [numbers[0]] : numbers, by: many ? word : -1 };
  }
  if (word >= 0) return { kind: "bar", x: -1, y: [numbers[0]], by: word };
  return numbers.length > 1 ? { kind: "line", x: numbers[0], y: numbers.slice(1), by: -1 } : null;
}

export class ChartView {
  constructor(box) {
    this.choice = el("div", { class: "choice" });
    this.canvas = el("div", { class: "chart" });
    this.note = el("p", { class: "more" });
    this.hint = el("p", { class: "chart-hint", "aria-hidden": "true" });
    box.replaceChildren(this.choice, this.canvas, this.note);
  }

  draw(answer) {
    this.answer = answer;
    this.plan = plan(answer.columns, answer.rows);
    this.choose();
    this.show();
  }

  // What was chosen for the user can be chosen otherwise.
  choose() {
    if (!this.plan) return this.choice.replaceChildren();
    const { columns } = this.answer;
    const listed = (test) => columns.flatMap(({ name, type }, at) => (test(type) ? [[at, name]] : []));
    const pick = (name, value, options, set) => (options.length < 2 ? null : el("label", {}, el("span", {}, name), el("select", {
      onchange(event) {
        set(event.target.value);
      },
    }, ...options.map(([key, text]) => el("option", { value: key, selected: String(key) === String(value) }, text)))));
    const set = (part) => {
      Object.assign(this.plan, part);
      this.choose();
      this.show();
    };
    const { kind, x, y, by } = this.plan;
    const along = listed((type) => TIMES.has(type) || isNumber(type)).filter(([at]) => at === x || y.length > 1 || !y.includes(at));
    const numbers = listed(isNumber);
    const words = listed((type) => type === "text" || type === "boolean");
    const several = y.length > 1 ? [["all", "all numbers"]] : [];
    this.choice.replaceChildren(...[
      pick("Kind", kind, [["line", "Line"], ["area", "Area"], ["bar", "Bars"]].filter(([key]) => x >= 0 || key === "bar"), (value) => set({ kind: value })),
      pick("Along", x, words.length ? [...along, [-1, "names"]] : along, (value) => set(Number(value) < 0 ? { x: -1, kind: "bar", y: y.slice(0, 1), by: by < 0 ? words[0][0] : by } : { x: Number(value) })),
      pick("Value", y.length > 1 ? "all" : y[0], [...several, ...numbers], (value) => value !== "all" && set({ y: [Number(value)] })),
      pick("By", by, x >= 0 && words.length ? [[-1, "nothing"], ...words] : words, (value) => set({ by: Number(value), ...(Number(value) >= 0 ? { y: y.slice(0, 1) } : {}) })),
      this.hint,
    ].filter(Boolean));
  }

  show() {
    this.view?.destroy();
    this.view = null;
    setText(this.note, "");
    if (!this.plan) return this.canvas.replaceChildren(el("p", { class: "nothing" }, this.answer.rows.length ? "A chart needs a number, and a time or a name beside it." : "No rows"));
    const { kind, x, y, by } = this.plan;
    const { columns } = this.answer;
    const used = [x, by, ...y].filter((at) => at >= 0);
    const rows = this.answer.rows.filter((row) => x < 0 || row[x] !== null).map((row) => row.map((value, at) => (used.includes(at) ? plotted(value, columns[at].type) : null)));
    const state = { columns: columns.map(({ name, type }) => ({ name, type: TIMES.has(type) ? "time" : isNumber(type) ? "number" : type })), rows, x, y, by };
    const names = y.map((at) => columns[at].name).join(", ");
    const title = `${names}${by >= 0 ? ` by ${columns[by].name}` : ""}`;
    const tile = { kind, title, thresholds: {}, decimals: -1, unit: "", by: "" };
    const page = { filters: new Map(), pointAt: (_, text) => setText(this.hint, text ?? "") };
    this.canvas.replaceChildren();
    this.state = x < 0 ? { ...state, rows: rows.slice(0, MOST_BARS) } : state;
    this.view = new (x < 0 ? BarTile : SeriesTile)(this.canvas, tile, page);
    this.view.draw(this.state);
    const words = { line: "line chart", area: "area chart", bar: "bar chart" }[kind];
    const plot = this.canvas.querySelector(".plot");
    if (plot) {
      setAttribute(plot, "role", "img");
      setAttribute(plot, "aria-label", `${title}: ${words} along ${columns[x].name}, ${rows.length} rows. The table has the figures.`);
    }
    setText(this.note, this.remark(rows));
  }

  remark(rows) {
    const { x } = this.plan;
    if (x < 0) return rows.length > MOST_BARS ? `The first ${MOST_BARS} of ${rows.length} rows.` : "";
    const drawn = this.view?.note ? `${this.view.note}. ` : "";
    return drawn + (TIMES.has(this.answer.columns[x].type) ? "Times are in UTC." : "");
  }

  recolour() {
    if (!this.view) return;
    (this.view.recolour ?? this.view.draw).call(this.view, this.state);
  }

  destroy() {
    this.view?.destroy();
  }
}

// The charts show local times; moved by the zone, they show UTC, as the table does.
function plotted(value, type) {
  if (value === null) return null;
  if (isNumber(type)) return Number(value);
  if (!TIMES.has(type)) return value;
  const ms = Date.parse(value);
  return ms + new Date(ms).getTimezoneOffset() * 60000;
}
