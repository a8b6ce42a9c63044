// Charts along a time, on uPlot: lines, stacked areas, bars and candles.
import { el, font, setText } from "./dom.js";
import { alpha, ink, series as look } from "./colors.js";
import { clock, day, figure, label, moment } from "./format.js";

const MOST_LINES = 24;

// Rows of (x, group, value) as columns: one list of times, and for each group a list beside it.
export function pivot(state) {
  const times = [...new Set(state.rows.map((row) => row[state.x]))].sort((one, other) => one - other);
  const place = new Map(times.map((at, number) => [at, number]));
  const groups = new Map();
  const list = (name) => {
    if (!groups.has(name)) groups.set(name, new Array(times.length).fill(null));
    return groups.get(name);
  };
  for (const row of state.rows) {
    for (const at of state.y) {
      const name = state.by >= 0 ? row[state.by] : state.columns[at].name;
      const value = row[at] === null ? null : Number(row[at]);
      list(name)[place.get(row[state.x])] = Number.isFinite(value) ? value : null;
    }
  }
  return { times, groups };
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
    const { times, groups } = pivot(state);
    // A group keeps its colour for as long as the page is open.
    for (const name of groups.keys()) if (!this.order.includes(name)) this.order.push(name);
    const names = this.order.filter((name) => groups.has(name)).slice(0, MOST_LINES);
    this.times = times;
    this.lists = names.map((name) => groups.get(name));
    this.names = names;
    this.type = state.columns[state.x].type;
    const along = this.type === "time" ? times.map((at) => at / 1000) : times;
    const data = this.tile.kind === "area" ? [along, ...stacked(this.lists)] : [along, ...this.lists];
    this.paint(data, JSON.stringify(names), () => this.seriesOf(names));
    this.drawLegend(state);
  }

  seriesOf(names) {
    return names.map((name) => {
      const { color, dash } = look(this.order.indexOf(name));
      const common = { label: label(name), stroke: color, points: { show: false }, spanGaps: false };
      if (this.tile.kind === "bar") return { ...common, fill: alpha(color, 0.75), width: 0, paths: uPlot.paths.bars({ size: [0.75, 48], radius: 0.1 }) };
      if (this.tile.kind === "area") return { ...common, width: 1.25, fill: alpha(color, names.length > 1 ? 0.55 : 0.22) };
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
      scales: { x: { time: this.type === "time", range: (_, low, high) => this.along(low, high) }, y: { range: (_, low, high) => bounds(low, high, zero) } },
      axes: [
        { ...axis, size: 2 * parseFloat(font()), gap: 6, space: 64, grid: { show: false }, values: (plot, splits) => this.timeLabels(splits),
          ...(this.type === "time" ? {} : { incrs: () => (this.times.every(Number.isInteger) ? WHOLE : STEPS) }) },
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
    if (this.type !== "time") return tickLabels(splits);
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
    const key = this.names.join("\u0000");
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
    const name = this.names[at];
    const { color, dash } = look(this.order.indexOf(name));
    const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.borderTopColor = color;
    swatch.style.borderTopStyle = dash.length ? (dash[0] < 4 ? "dotted" : "dashed") : "solid";
    const value = el("span", { class: "legend-value" });
    const parts = [swatch, el("span", { class: "legend-name" }, label(name)), value];
    const inner = this.tile.by
      ? el("button", { type: "button", class: "legend-entry", "aria-pressed": "false", onclick: () => this.page.drill(this.tile.by, name) }, ...parts)
      : el("span", { class: "legend-entry" }, ...parts);
    const item = el("li", { onmouseenter: () => this.focus(at), onmouseleave: () => this.focus(null) }, inner);
    return { at, item, value, inner, swatch };
  }

  // The group that the page is filtered by stands out.
  chosen() {
    const picked = this.tile.by && this.page.filters.has(this.tile.by) ? this.page.filters.get(this.tile.by) : undefined;
    for (const each of this.entries) {
      if (this.tile.by) each.inner.setAttribute("aria-pressed", String(picked !== undefined && String(picked) === String(this.names[each.at])));
    }
    const at = picked === undefined ? null : this.names.findIndex((name) => String(name) === String(picked));
    this.picked = at !== null && at >= 0 ? at : null;
    this.focus(null);
  }

  focus(at) {
    const shown = at ?? this.picked ?? null;
    if (this.plot && this.tile.kind === "line") this.plot.setSeries(shown === null ? null : shown + 1, { focus: true });
  }

  showValues(values) {
    for (const each of this.entries ?? []) setText(each.value, figure(values[each.at], this.tile.decimals));
  }

  // Under the pointer: the values of that time, in the legend, and which time it is.
  follow(at) {
    const there = at !== null && at !== undefined && this.times?.length;
    this.page.pointAt(this.box, there ? this.hint(at) : null);
    if (this.values && !this.legend.hidden) this.showValues(there ? this.lists.map((list) => list[at]) : this.values);
  }

  hint(at) {
    const when = this.type === "time" ? moment(this.times[at], this.times.at(-1)) : label(this.times[at]);
    if (this.names.length > 1) return when;
    const value = this.lists[0]?.[at];
    return `${when}   ${figure(value, this.tile.decimals)} ${this.tile.unit}`;
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
    this.times = state.rows.map((row) => row[state.x]);
    this.type = state.columns[state.x].type;
    this.names = state.y.map((at) => state.columns[at].name);
    this.lists = state.y.map((at) => state.rows.map((row) => (row[at] === null ? null : Number(row[at]))));
    this.legend.hidden = true;
    const along = this.type === "time" ? this.times.map((at) => at / 1000) : this.times;
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
    return [moment(this.times[at], this.times.at(-1)), ...values].join("   ");
  }
}
