// What the picture calls things, and how it writes their figures.

export const KINDS = { source: "Source", topic: "Topic", stream: "Stream", lookup: "Lookup", table: "Table", dashboard: "Dashboard" };

// Outlines of 14 by 14.
export const ICONS = {
  source: "M1 7h8M6 4l3 3-3 3M9 2h3v10H9",
  topic: "M1 3.5h12M1 7h12M1 10.5h8",
  stream: "M1 5c2-2.4 4-2.4 6 0s4 2.4 6 0M1 10c2-2.4 4-2.4 6 0s4 2.4 6 0",
  lookup: "M7 3.5C5.5 2.5 3.5 2.5 1.5 3v8c2-.5 4-.5 5.5.5 1.5-1 3.5-1 5.5-.5V3C10.5 2.5 8.5 2.5 7 3.5zM7 3.5v8",
  table: "M1.5 2.5h11v9h-11zM1.5 5.5h11M5.5 5.5v6",
  dashboard: "M2 12V8M6 12V4M10 12V6M1 12h12",
};

// States have shapes, so that nobody needs the colours: a disc, a ring, a triangle, a square.
export const SIGNS = {
  running: "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
  waiting: "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0zM-2.5 0a2.5 2.5 0 1 1 5 0a2.5 2.5 0 1 1-5 0z",
  failed: "M0-6L6 5H-6z",
  stopped: "M-4.5-4.5h9v9h-9z",
};

const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

// A number in three digits: 0, 4.2, 950, 12.3k, 4.56M.
export function short(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, sign] of UNITS) if (Math.abs(value) >= unit * 0.9995) return three(value / unit) + sign;
  return three(value);
}

function three(value) {
  const digits = Number.isInteger(value) || Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2;
  return value.toFixed(digits).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

export const rate = (value) => (value === null || value === undefined ? "–" : `${short(value)}/s`);

export const count = (value) => (value === null || value === undefined ? "–" : new Intl.NumberFormat().format(value));

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, sign] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) if (value >= unit) return `${three(value / unit)} ${sign}`;
  return `${value} B`;
}

export function millis(value) {
  if (value === null || value === undefined) return "–";
  return value < 1000 ? `${Math.round(value)} ms` : `${three(value / 1000)} s`;
}

// The figures of a node, in two lines of two: how much flows, and what is behind or there.
export function figuresOf(node, it) {
  if (it.state === undefined) return [];
  const some = (value, text) => (value === undefined || value === null ? "" : text);
  switch (node.kind) {
    case "stream":
      return it.in === undefined ? [] : [`in ${rate(it.in)}`, `out ${rate(it.out)}`, some(it.lag, `lag ${short(it.lag)}`), it.dead ? `${short(it.dead)} dead` : ""];
    case "topic":
      return it.records === undefined ? [] : [rate(it.in), `${it.partitions} partition${it.partitions === 1 ? "" : "s"}`, `${it.about ? "≈ " : ""}${short(it.records)} records`, ""];
    case "table":
      return it.rows === undefined ? [] : [rate(it.in), "", `${short(it.rows)} rows`, it.lag ? `lag ${short(it.lag)}` : ""];
    case "source":
      return node.topic ? [rate(it.out), "", `to ${node.topic}`, ""] : ["", "", node.about, ""];
    case "lookup":
      return ["", "", node.about ? `by ${node.about}` : "", ""];
    default:
      return ["", "", it.viewers === 1 ? "1 viewer" : `${count(it.viewers)} viewers`, ""];
  }
}

// A node in words, for who does not see it.
export function described(node, figures) {
  const said = [`${KINDS[node.kind]} ${node.title || node.name}`, figures.word ?? ""];
  if (figures.in !== undefined && figures.in !== null) said.push(`${short(figures.in)} records a second in`);
  if (node.kind === "stream" && figures.out !== undefined && figures.out !== null) said.push(`${short(figures.out)} out`);
  if (figures.lag) said.push(`${count(figures.lag)} offsets behind`);
  if (figures.dead) said.push(`${count(figures.dead)} dead`);
  if (figures.rows !== undefined) said.push(`${count(figures.rows)} rows`);
  return said.filter(Boolean).join(", ");
}
