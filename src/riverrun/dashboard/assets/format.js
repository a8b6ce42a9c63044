// Values as people read them.

const plain = new Map();

function formatter(options) {
  const key = JSON.stringify(options);
  if (!plain.has(key)) plain.set(key, new Intl.NumberFormat(undefined, options));
  return plain.get(key);
}

const BIG = [[1e12, "T"], [1e9, "G"], [1e6, "M"]];

// Smaller numbers are written as 1.23e-12.
const MOST_DECIMALS = 12;

// How many decimals a number needs on a tile, by its size: small ones have three digits that count.
export function places(value) {
  const number = Number(value);
  const size = Math.abs(number);
  if (!Number.isFinite(number) || Number.isInteger(number)) return 0;
  return size >= 1000 ? 0 : size >= 100 ? 1 : size >= 0.1 ? 2 : Math.min(MOST_DECIMALS, Math.max(4, 2 - exponent(size)));
}

// As many decimals for all of them, so that they can be compared.
export const sharedPlaces = (values) => values.reduce((most, value) => Math.max(most, places(value)), 0);

const exponent = (size) => Number(size.toExponential().split("e")[1]);

// The decimals that a value has, without the noise of floating point: 0.1 + 0.2 has one.
function decimalsOf(number) {
  const [digits, power] = Math.abs(number).toExponential(14).split("e");
  return Math.max(0, digits.replace(/0+$/, "").length - 2 - Number(power));
}

// How many decimals a table's column has: all that its values have up to thousandths; where they have more, as computed ones
// do, so many that the largest has five digits that count and the smallest four.
export function columnPlaces(values) {
  const sizes = values.flatMap((value) => (value === null || value === "" || !Number(value) || !Number.isFinite(Number(value)) ? [] : [Math.abs(Number(value))]));
  const exact = sizes.reduce((most, size) => Math.max(most, decimalsOf(size)), 0);
  if (exact <= 3) return exact;
  const most = sizes.reduce((one, other) => Math.max(one, other));
  // What is nothing beside the others does not widen them all.
  const small = sizes.reduce((least, size) => (size > most * 1e-9 ? Math.min(least, size) : least), most);
  return Math.min(exact, MOST_DECIMALS, Math.max(2, 4 - exponent(most), 3 - exponent(small)));
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
  if (decimals < 0 && number && size < 0.5 * 10 ** -digits) return scientific(number);
  return formatter({ minimumFractionDigits: digits, maximumFractionDigits: digits }).format(number);
}

const scientific = (number) => String(Number(number.toPrecision(3)));

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
  return momentAs(ms, momentForm([ms], besides));
}

// How the times of a column are written, all alike: with seconds and with their day where one of them needs it.
export function momentForm(values, besides = undefined) {
  const there = values.filter((ms) => ms !== null && ms !== undefined);
  const newest = besides ?? there.reduce((most, ms) => Math.max(most, ms), 0);
  return { seconds: there.some((ms) => new Date(ms).getSeconds() !== 0), days: there.some((ms) => day(ms) !== day(newest)) };
}

export function momentAs(ms, { seconds, days }) {
  if (ms === null || ms === undefined) return "–";
  return days ? `${day(ms)} ${clock(ms, seconds)}` : clock(ms, seconds);
}

// The zone that times are shown in, such as GMT+1, and its name.
export function zone(ms = Date.now()) {
  const parts = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts(ms);
  return parts.find(({ type }) => type === "timeZoneName")?.value ?? "";
}

export const zoneName = () => Intl.DateTimeFormat().resolvedOptions().timeZone;

// A day as text, as a place along an axis: its midnight here, so that it has the same name on the axis.
export function dayStart(text) {
  const [year, month, date] = String(text).split("-").map(Number);
  return new Date(year, month - 1, date).getTime();
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

// Any value of a column, for tables. `form` is what `columnForm` made of the whole column. Nothing that is there is shown as 0.
export function cell(value, type, form) {
  if (value === null || value === undefined) return "–";
  if (type === "time") return momentAs(value, form);
  if (type === "boolean") return value ? "yes" : "no";
  if (type !== "number") return String(value);
  // A number with more digits than a browser's has comes as text, and stays as it is.
  if (typeof value === "string" && !/^-?\d+$/.test(value)) return value;
  const number = Number(value);
  if (!form.fixed && number && Math.abs(number) < 0.5 * 10 ** -form.decimals) return scientific(number);
  return figure(value, form.decimals, false);
}

// How all values of a column are written. `decimals` is what the tile says, -1 for nothing.
export function columnForm(values, type, decimals = -1) {
  if (type === "time") return momentForm(values);
  if (type === "number") return { decimals: decimals < 0 ? columnPlaces(values) : decimals, fixed: decimals >= 0 };
  return {};
}

// A value whole, where a cell shows it rounded: what a pointer on it reads. Null where the cell has it all.
export function whole(value, type, text) {
  if (type === "time" && value !== null) return new Date(value).toISOString();
  if (type !== "number" || typeof value !== "number" || !Number.isFinite(value)) return null;
  return Number(text.replace(/[^\d.eE+-]/g, "")) === value ? null : String(value);
}

// What the name of a group is, where it has none.
export const label = (value) => (value === null || value === undefined ? "(none)" : value === "" ? "(empty)" : String(value));
