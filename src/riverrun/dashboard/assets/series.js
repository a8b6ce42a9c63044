// Charts along a time, on uPlot: lines, stacked areas, bars and candles.
import { el, font, setText } from "./dom.js";
import { alpha, ink, series as look } from "./colors.js";
import { clock, day, dayStart, figure, label, moment, sharedPlaces } from "./format.js";

const MOST_LINES = 24;

// Between two places along the axis there are at most so many that are filled in.
const MOST_FILLED = 20000;

// Rows of (x, group, values) as columns: one list of times, and a line beside it for each group and each value. `fill` is
// what stands where there is no row; null leaves a gap. `repeated` counts rows for a place that another row has already.
export function pivot(state, fill = null) {
  const isDay = state.columns[state.x].type === "date";
  const at = (row) => (isDay ? dayStart(row[state.x]) : row[state.x]);
  const times = filledIn([...new Set(state.rows.map(at))].sort((one, other) => one - other), fill);
  const place = new Map(times.map((time, number) => [time, number]));
  const lines = new Map();
  const several = state.by >= 0 && state.y.length > 1;
  let repeated = 0;
  const line = (row, column) => {
    const group = state.by >= 0 ? row[state.by] : undefined;
    const key = JSON.stringify([group, state.by >= 0 && !several ? null : column]);
    if (!lines.has(key)) {
      const figureName = state.columns[column].name;
      const name = state.by < 0 ? figureName : several ? `${label(group)} · ${figureName.replaceAll("_", " ")}` : label(group);
      lines.set(key, { key, group, name, list: new Array(times.length).fill(fill), seen: new Set() });
    }
    return lines.get(key);
  };
  for (const row of state.rows) {
    for (const column of state.y) {
      const { list, seen } = line(row, column);
      const number = place.get(at(row));
      const value = row[column] === null ? null : Number(row[column]);
      if (seen.has(number)) repeated += 1;
      seen.add(number);
      list[number] = Number.isFinite(value) ? value : fill;
    }
  }
  return { times, lines: [...lines.values()], repeated };
}

// With a fill, the times that no row has, at the step that the others keep.
function filledIn(times, fill) {
  if (fill === null || times.length < 3) return times;
  const step = times.reduce((least, time, at) => (at ? Math.min(least, time - times[at - 1]) : least), Infinity);
  if (!(step > 0) || (times.at(-1) - times[0]) / step > MOST_FILLED) return times;
  // A day of 23 or 25 hours, and times that keep no step, stay where they are.
  return times.flatMap((time, at) => {
    const gap = at ? time - times[at - 1] : 0;
    return gap % step ? [time] : [...Array.from({ length: Math.max(0, gap / step - 1) }, (_, number) => times[at - 1] + (number + 1) * step), time];
  });
}

// The lines that are drawn: those with the largest sums where there are too many. Parts of a whole stay whole: what is left
// over is one more.
function drawn(lines, kind) {
  if (lines.length <= MOST_LINES) return { shown: lines, left: 0 };
  const sum = new Map(lines.map((line) => [line, line.list.reduce((all, value) => all + Math.abs(value ?? 0), 0)]));
  const ranked = lines.slice().sort((one, other) => sum.get(other) - sum.get(one));
  const most = new Set(ranked.slice(0, kind === "area" ? MOST_LINES - 1 : MOST_LINES));
  const shown = lines.filter((line) => most.has(line));
  const rest = lines.filter((line) => !most.has(line));
  if (kind !== "area") return { shown, left: rest.length };
  const list = rest[0].list.map((_, at) => rest.reduce((all, line) => (line.list[at] === null ? all : (all ?? 0) + line.list[at]), null));
  return { shown: [...shown, { key: "others", group: undefined, name: `${rest.length} others`, list }], left: 0 };
}

export class SeriesTile {
  constructor(body, tile, page) {
    this.tile = tile;
    this.page = page;
    this.box = el("div", { class: "plot" });
    this.legend = el("ul", { class: "legend" });
    body.append(el("div", { class: "series" }, this.box, this.legend));
    this.order = [];
    this.plot = null;
    this.state = null;
    // The legend takes room when it comes; the plot follows.
    this.watcher = new ResizeObserver(() => this.resize(this.state));
    this.watcher.observe(this.box);
    this.signature = "";
  }

  draw(state) {
    this.state = state;
    const { times, lines, repeated } = pivot(state, this.tile.fill ?? null);
    const { shown, left: undrawn } = drawn(lines, this.tile.kind);
    // The question asks for the largest groups only; what it left out has not come here.
    const notAsked = (state.groups_left_out ?? 0) * (state.by >= 0 ? state.y.length : 0);
    const [total, left] = [lines.length + notAsked, undrawn + notAsked];
    // A group keeps its colour for as long as the page is open.
    for (const { key } of shown) if (!this.order.includes(key)) this.order.push(key);
    shown.sort((one, other) => this.order.indexOf(one.key) - this.order.indexOf(other.key));
    this.times = times;
    this.lines = shown;
    this.lists = shown.map((line) => line.list);
    this.names = shown.map((line) => line.name);
    this.type = state.columns[state.x].type;
    this.note = [
      left ? `${total - left} of ${total} lines are drawn, the largest; ${left} ${left === 1 ? "is" : "are"} left out` : "",
      repeated ? `${repeated} rows have a time and a name that another row has: only the last is drawn. Group by both, or name by=` : "",
    ].filter(Boolean).join(". ");
    const along = this.isTime ? times.map((at) => at / 1000) : times;
    const data = this.tile.kind === "area" ? [along, ...stacked(this.lists)] : [along, ...this.lists];
    this.paint(data, JSON.stringify(shown.map((line) => line.key)), () => this.seriesOf());
    this.drawLegend(state);
  }

  get isTime() {
    return this.type === "time" || this.type === "date";
  }

  seriesOf() {
    return this.lines.map(({ key, name }) => {
      const { color, dash } = look(this.order.indexOf(key));
      const common = { label: name, stroke: color, points: { show: false }, spanGaps: false };
      if (this.tile.kind === "bar") return { ...common, fill: alpha(color, 0.75), width: 0, paths: uPlot.paths.bars({ size: [0.75, 48], radius: 0.1 }) };
      if (this.tile.kind === "area") return { ...common, width: 1.25, fill: alpha(color, this.lines.length > 1 ? 0.55 : 0.22) };
      return { ...common, width: 1.75, dash };
    });
  }

  // New data in the plot that is there, or a new plot where lines have come or gone.
  paint(data, signature, makeSeries) {
    const size = this.size();
    if (size.width < 40 || size.height < 40) return;
    const colours = ink();
    const key = `${signature}|${colours.text}|${this.type}`;
    if (this.plot && this.signature === key) {
      this.plot.setData(data);
      return;
    }
    this.plot?.destroy();
    this.signature = key;
    this.plot = new uPlot(this.options(size, makeSeries(), colours), data, this.box);
  }

  size() {
    return { width: Math.floor(this.box.clientWidth), height: Math.floor(this.box.clientHeight) };
  }

  options(size, lines, colours) {
    const axis = { stroke: colours.muted, font: font(), ticks: { show: false }, grid: { stroke: colours.grid, width: 1 } };
    const zero = this.tile.kind !== "line" && this.tile.kind !== "candle";
    return {
      ...size,
      padding: [8, 24, 0, 0],
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { size: 7 }, y: false },
      focus: { alpha: 0.25 },
      scales: { x: { time: this.isTime, range: (_, low, high) => this.along(low, high) }, y: { range: (_, low, high) => bounds(low, high, zero) } },
      axes: [
        { ...axis, size: 2 * parseFloat(font()), gap: 6, space: 64, grid: { show: false }, values: (plot, splits) => this.timeLabels(splits),
          // No label between two days.
          ...(this.type === "date" ? { incrs: [1, 2, 7, 14, 28, 91, 182, 364].map((days) => days * 86400) } : {}),
          ...(this.isTime ? {} : { incrs: () => (this.times.every(Number.isInteger) ? WHOLE : STEPS) }) },
        { ...axis, size: (plot, values) => widest(values), gap: 6, space: 36, values: (plot, splits) => tickLabels(splits) },
      ],
      bands: this.tile.kind === "area" ? lines.slice(1).map((_, at) => ({ series: [at + 2, at + 1] })) : [],
      series: [{}, ...lines],
      hooks: { draw: [(plot) => this.drawLimits(plot)], setCursor: [(plot) => this.follow(plot.cursor.idx)] },
    };
  }

  // Bars and candles need room for half of one at both ends.
  along(low, high) {
    if (this.tile.kind !== "bar" && this.tile.kind !== "candle") return [low, high];
    const half = this.times.length > 1 ? (high - low) / (this.times.length - 1) / 1.6 : 1;
    return [low - half, high + half];
  }

  timeLabels(splits) {
    if (!this.isTime) return tickLabels(splits);
    const seconds = splits.length > 1 && splits[1] - splits[0] < 60;
    let before = "";
    return splits.map((at) => {
      const today = day(at * 1000);
      const text = splits[1] - splits[0] >= 86400 ? today.slice(5) : clock(at * 1000, seconds);
      const turned = before && today !== before && splits[1] - splits[0] < 86400;
      before = today;
      return turned ? `${text}\n${today.slice(5)}` : text;
    });
  }

  // Lines at the thresholds, with their names: colour alone says nothing to some.
  drawLimits(plot) {
    const colours = ink();
    for (const [name, value] of Object.entries(this.tile.thresholds)) {
      const y = plot.valToPos(value, "y", true);
      if (y < plot.bbox.top || y > plot.bbox.top + plot.bbox.height) continue;
      const pen = plot.ctx;
      const scale = devicePixelRatio || 1;
      pen.save();
      pen.strokeStyle = pen.fillStyle = colours[name];
      pen.lineWidth = scale;
      pen.setLineDash([5 * scale, 4 * scale]);
      pen.beginPath();
      pen.moveTo(plot.bbox.left, y);
      pen.lineTo(plot.bbox.left + plot.bbox.width, y);
      pen.stroke();
      pen.font = font(0.625 * scale);
      pen.textAlign = "right";
      pen.fillText(`${name} ${figure(value, this.tile.decimals)}`, plot.bbox.left + plot.bbox.width - 2 * scale, y - 4 * scale);
      pen.restore();
    }
  }

  drawLegend(state) {
    const single = state.by < 0 && this.names.length < 2;
    this.legend.hidden = single;
    if (single) return;
    const last = this.lists.map((list) => list.findLast((value) => value !== null) ?? null);
    // Largest first, as the eye meets them; but calm: only when the chart is built anew or a group comes.
    const key = this.lines.map((line) => line.key).join("\u0000");
    if (this.legendKey !== key) {
      this.legendKey = key;
      this.ranked = this.names.map((_, at) => at).sort((one, other) => (last[other] ?? -Infinity) - (last[one] ?? -Infinity));
      this.entries = this.ranked.map((at) => this.entry(at));
      this.legend.replaceChildren(...this.entries.map((each) => each.item));
    }
    this.values = last;
    this.chosen();
    this.showValues(last);
  }

  entry(at) {
    const { key, group, name } = this.lines[at];
    const { color, dash } = look(this.order.indexOf(key));
    const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.borderTopColor = color;
    swatch.style.borderTopStyle = dash.length ? (dash[0] < 4 ? "dotted" : "dashed") : "solid";
    const value = el("span", { class: "legend-value" });
    const parts = [swatch, el("span", { class: "legend-name" }, name), value];
    const inner = this.tile.by && group !== undefined
      ? el("button", { type: "button", class: "legend-entry", "aria-pressed": "false", onclick: () => this.page.drill(this.tile.by, group) }, ...parts)
      : el("span", { class: "legend-entry" }, ...parts);
    const item = el("li", { onmouseenter: () => this.focus(at), onmouseleave: () => this.focus(null) }, inner);
    return { at, item, value, inner, swatch };
  }

  // The group that the page is filtered by stands out.
  chosen() {
    const picked = this.tile.by && this.page.filters.has(this.tile.by) ? this.page.filters.get(this.tile.by) : undefined;
    for (const each of this.entries) {
      if (each.inner.tagName === "BUTTON") each.inner.setAttribute("aria-pressed", String(this.isOf(each.at, picked)));
    }
    const at = picked === undefined ? null : this.lines.findIndex((_, number) => this.isOf(number, picked));
    this.picked = at !== null && at >= 0 ? at : null;
    this.focus(null);
  }

  isOf(at, picked) {
    const { group } = this.lines[at];
    return picked !== undefined && group !== undefined && String(picked) === String(group);
  }

  focus(at) {
    const shown = at ?? this.picked ?? null;
    if (this.plot && this.tile.kind === "line") this.plot.setSeries(shown === null ? null : shown + 1, { focus: true });
  }

  showValues(values) {
    const decimals = this.tile.decimals >= 0 ? this.tile.decimals : sharedPlaces(values);
    for (const each of this.entries ?? []) setText(each.value, figure(values[each.at], decimals));
  }

  // Under the pointer: the values of that time, in the legend, and which time it is.
  follow(at) {
    const there = at !== null && at !== undefined && this.times?.length;
    this.page.pointAt(this.box, there ? this.hint(at) : null);
    if (this.values && !this.legend.hidden) this.showValues(there ? this.lists.map((list) => list[at]) : this.values);
  }

  hint(at) {
    const when = this.when(at);
    if (this.names.length > 1) return when;
    const value = this.lists[0]?.[at];
    return `${when}   ${figure(value, this.tile.decimals)} ${this.tile.unit}`;
  }

  when(at) {
    const place = this.times[at];
    return this.type === "time" ? moment(place, this.times.at(-1)) : this.type === "date" ? day(place) : label(place);
  }

  resize(state) {
    const size = this.size();
    if (!this.plot) return state && this.draw(state);
    const same = size.width === this.plot.width && size.height === this.plot.height;
    if (!same && size.width > 40 && size.height > 40) this.plot.setSize(size);
  }

  recolour(state) {
    this.legendKey = "";
    this.draw(state);
  }

  destroy() {
    this.watcher.disconnect();
    this.plot?.destroy();
  }
}

// Each list on top of those before it.
function stacked(lists) {
  const sums = new Array(lists[0]?.length ?? 0).fill(0);
  return lists.map((list) => list.map((value, at) => (value === null ? (sums[at] || null) : (sums[at] += value))));
}

function bounds(low, high, zero) {
  if (low === null || high === null || low === undefined) return [0, 1];
  if (low === high) return low === 0 ? [0, 1] : [Math.min(0, low), Math.max(0, high) * 1.1];
  const base = low >= 0 && (zero || low < high * 0.6) ? 0 : low - (high - low) * 0.08;
  return [base, high + (high - base) * 0.08];
}

// Between two labels of numbers; there is no over 7.5 where all are whole.
const STEPS = Array.from({ length: 19 }, (_, at) => [1, 2, 2.5, 5].map((first) => first * 10 ** (at - 6))).flat();
const WHOLE = STEPS.filter(Number.isInteger);

export function tickLabels(splits) {
  const step = splits.length > 1 ? Math.abs(splits[1] - splits[0]) : 1;
  // As many as the step has: one of 2.5 has to say 12.5, not 13.
  const digits = [0, 1, 2, 3, 4, 5].find((count) => Math.abs(step * 10 ** count - Math.round(step * 10 ** count)) < 1e-6 * step * 10 ** count) ?? 6;
  return splits.map((value) => figure(value, digits));
}

const ruler = document.createElement("canvas").getContext("2d");

function widest(values) {
  ruler.font = font();
  return Math.ceil(Math.max(16, ...(values ?? []).map((text) => ruler.measureText(text).width))) + 14;
}

export class CandleTile extends SeriesTile {
  draw(state) {
    this.state = state;
    this.type = state.columns[state.x].type;
    this.times = state.rows.map((row) => (this.type === "date" ? dayStart(row[state.x]) : row[state.x]));
    this.names = state.y.map((at) => state.columns[at].name);
    this.lists = state.y.map((at) => state.rows.map((row) => (row[at] === null ? null : Number(row[at]))));
    this.legend.hidden = true;
    const along = this.isTime ? this.times.map((at) => at / 1000) : this.times;
    // uPlot draws the axes; the candles are drawn into its canvas.
    this.paint([along, ...this.lists], "candles", () => this.names.map((name) => ({ label: name, paths: () => null, points: { show: false } })));
  }

  drawLimits(plot) {
    super.drawLimits(plot);
    const [times, open, high, low, close] = plot.data;
    if (!times.length) return;
    const scale = devicePixelRatio || 1;
    const step = times.length > 1 ? plot.valToPos(times[1], "x", true) - plot.valToPos(times[0], "x", true) : 12 * scale;
    const wide = Math.max(scale, Math.min(18 * scale, step * 0.68));
    const pen = plot.ctx;
    pen.save();
    pen.beginPath();
    pen.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
    pen.clip();
    pen.lineWidth = scale * 1.25;
    for (let at = 0; at < times.length; at += 1) {
      if ([open, high, low, close].some((list) => list[at] === null)) continue;
      const rises = close[at] >= open[at];
      const { color } = look(rises ? 0 : 1);
      const x = Math.round(plot.valToPos(times[at], "x", true));
      const [o, h, l, c] = [open, high, low, close].map((list) => plot.valToPos(list[at], "y", true));
      pen.strokeStyle = pen.fillStyle = color;
      pen.beginPath();
      pen.moveTo(x, h);
      pen.lineTo(x, Math.min(o, c));
      pen.moveTo(x, Math.max(o, c));
      pen.lineTo(x, l);
      pen.stroke();
      const [top, tall] = [Math.min(o, c), Math.max(scale, Math.abs(o - c))];
      // Hollow when it rose, full when it fell: the shape says what the colour says.
      if (rises) pen.strokeRect(x - wide / 2, top, wide, tall);
      else pen.fillRect(x - wide / 2, top, wide, tall);
    }
    pen.restore();
  }

  options(size, lines, colours) {
    const options = super.options(size, lines, colours);
    options.scales.y.range = (_, low, high) => (low === null || low === undefined ? [0, 1] : low === high ? [low - 1, high + 1] : [low - (high - low) * 0.06, high + (high - low) * 0.06]);
    return options;
  }

  hint(at) {
    const values = this.lists.map((list, number) => `${this.names[number]} ${figure(list[at], this.tile.decimals)}`);
    return [this.when(at), ...values].join("   ");
  }
}
