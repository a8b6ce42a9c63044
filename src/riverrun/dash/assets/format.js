// Values as people read them.

const plain = new Map();

function formatter(options) {
  const key = JSON.stringify(options);
  if (!plain.has(key)) plain.set(key, new Intl.NumberFormat(undefined, options));
  return plain.get(key);
}

const BIG = [[1e12, "T"], [1e9, "G"], [1e6, "M"]];

// How many decimals a number needs, by its size.
export function places(value) {
  const number = Number(value);
  const size = Math.abs(number);
  if (!Number.isFinite(number) || Number.isInteger(number)) return 0;
  return size >= 1000 ? 0 : size >= 100 ? 1 : size >= 0.1 ? 2 : 4;
}

// A number that fits a tile: few digits, and the same number of them from one update to the next.
export function figure(value, decimals = -1, short = true) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string" && /^-?\d{16,}$/.test(value)) return formatter({}).format(BigInt(value));
  const number = Number(value);
  if (!Number.isFinite(number)) return String(value);
  const size = Math.abs(number);
  if (short) {
    for (const [unit, sign] of BIG) {
      if (size >= unit) return formatter({ minimumFractionDigits: 2, maximumFractionDigits: 2 }).format(number / unit) + " " + sign;
    }
  }
  const digits = decimals < 0 ? places(number) : decimals;
  return formatter({ minimumFractionDigits: digits, maximumFractionDigits: digits }).format(number);
}

export function withUnit(value, tile) {
  const text = figure(value, tile.decimals);
  return tile.unit && text !== "–" ? `${text} ${tile.unit}` : text;
}

const two = (number) => String(number).padStart(2, "0");

export function day(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

export function clock(ms, seconds = true) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}${seconds ? `:${two(at.getSeconds())}` : ""}`;
}

// A time as short as it can be: no seconds where there are none, no day where it is today's data.
export function moment(ms, besides = ms) {
  if (ms === null || ms === undefined) return "–";
  const time = clock(ms, new Date(ms).getSeconds() !== 0);
  return day(ms) === day(besides) ? time : `${day(ms)} ${time}`;
}

export function age(ms) {
  if (ms < 1000) return "now";
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

export function span(ms) {
  for (const [unit, size] of [["d", 864e5], ["h", 36e5], ["min", 6e4], ["s", 1e3]]) {
    if (ms >= size && ms % size === 0) return `${ms / size} ${unit}`;
  }
  return `${Math.round(ms)} ms`;
}

// Any value of a column, for tables and labels. Exact: a table is where people look things up.
export function cell(value, type, decimals = -1, besides = undefined) {
  if (value === null || value === undefined) return "–";
  if (type === "time") return moment(value, besides ?? value);
  if (type === "number") return figure(value, decimals, false);
  if (type === "boolean") return value ? "yes" : "no";
  return String(value);
}

// What the name of a group is, where it has none.
export const label = (value) => (value === null || value === undefined ? "(none)" : value === "" ? "(empty)" : String(value));
