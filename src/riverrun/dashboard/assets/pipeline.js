// The pipeline as a live graph. The server says what changed; nodes are drawn once and their figures written anew.
import { $, el, setAttribute, setText, svg } from "./dom.js";
import "./header.js";
import { layout } from "./pipeline-layout.js";
import { Panel } from "./pipeline-panel.js";
import { ICONS, KINDS, SIGNS, described, figuresOf } from "./pipeline-words.js";
import { Stream } from "./stream.js";

const LIVE = "/api/pipeline/live";
const HIDDEN = 60000;
const LARGE = { wide: 158, high: 92, word: 19, figures: [[0, 61], [1, 61], [0, 79], [1, 79]] };
// Where there is little room, one below the other.
const SMALL = { wide: 116, high: 124, word: 56, figures: [[0, 74], [0, 88], [0, 102], [0, 116]] };
// A picture that is too wide is made smaller, down to what can be read; then it scrolls.
const SMALLEST = 0.8;
const LARGEST = 1.3;
const MARGIN = 14;
// So many looks back a node's figures are kept for its lines.
const KEPT = 120;

const page = { app: "", shape: null, nodes: {}, pipeline: null, troubles: [], link: "connecting", offset: 0, drawn: new Map(), lines: [], past: new Map(), at: "" };
const phone = matchMedia("(max-width: 760px)");
const panel = new Panel({ node: (id) => page.nodes[id], about, past: (id) => page.past.get(id) ?? [], now: () => Date.now() + page.offset, close: () => select("") });

const stream = new Stream({
  hello() {},
  frame(content) {
    if (content.now) page.offset = content.now - Date.now();
    if (content.whole) page.nodes = content.nodes;
    else for (const [id, figures] of Object.entries(content.nodes ?? {})) page.nodes[id] = { ...page.nodes[id], ...figures };
    for (const name of ["app", "pipeline", "troubles"]) if (name in content) page[name] = content[name];
    if (content.shape && JSON.stringify(content.shape) !== JSON.stringify(page.shape)) {
      page.shape = content.shape;
      drawAll();
      follow();
    }
    if (content.whole || content.nodes) remember();
    fill();
    banner();
  },
  state(state) {
    page.link = state;
    setText($("link-text"), { connecting: "Connecting", live: "Live", lost: "Reconnecting" }[state]);
    if ($("link").dataset.state !== state) setText($("said"), { live: "The picture is live", lost: "The connection is lost; it is tried again" }[state] ?? "");
    $("link").dataset.state = state;
    banner();
  },
});

function about(id) {
  return page.shape?.nodes.find((node) => node.id === id);
}

function remember() {
  const at = Date.now() + page.offset;
  for (const [id, figures] of Object.entries(page.nodes)) {
    const past = page.past.get(id) ?? [];
    past.push({ at, ...figures });
    if (past.length > KEPT) past.shift();
    page.past.set(id, past);
  }
}

// --- drawing ---

function drawAll() {
  const focused = document.activeElement?.closest?.(".node")?.dataset.id;
  page.drawn.clear();
  page.lines = [];
  if (!page.shape.nodes.length) {
    return $("graph").replaceChildren(el("p", { class: "nothing" }, "Nothing is known of this pipeline yet: `riverrun serve FILE` or `riverrun run FILE` tells its shape."));
  }
  const down = phone.matches;
  const size = down ? SMALL : LARGE;
  const { wide, high } = size;
  const sizes = down ? { along: high, across: wide, gapAlong: 34, gapAcross: 10, thin: 6 } : { along: wide, across: high, gapAlong: 38, gapAcross: 20 };
  const made = layout(page.shape.nodes.map((node) => node.id), page.shape.edges, sizes);
  const point = ({ along, across }) => (down ? [across + MARGIN, along + MARGIN] : [along + MARGIN, across + MARGIN]);
  const [width, height] = (down ? [made.across, made.along] : [made.along, made.across]).map((size) => Math.ceil(size + 2 * MARGIN));
  const picture = svg("svg", { class: "picture", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${page.shape.nodes.length} parts of the pipeline. Arrow keys go along the flow, Enter opens a part.` });
  picture.style.maxWidth = `${Math.round(width * LARGEST)}px`;
  picture.style.minWidth = `${Math.round(width * SMALLEST)}px`;
  const under = svg("g", { "aria-hidden": "true" });
  for (const line of made.lines) under.append(drawLine(line, point, down));
  picture.append(under);
  const sorted = [...page.shape.nodes].sort((a, b) => {
    const [one, other] = [made.nodes.get(a.id), made.nodes.get(b.id)];
    return one.layer - other.layer || one.order - other.order;
  });
  for (const node of sorted) picture.append(drawNode(node, made.nodes.get(node.id), point, size));
  $("graph").replaceChildren(picture);
  for (const drawn of page.drawn.values()) fit(drawn.name, drawn.title, wide - 24);
  if (!page.drawn.has(page.at)) page.at = sorted[0].id;
  setAttribute(page.drawn.get(page.at).box, "tabindex", "0");
  if (focused && page.drawn.has(focused)) page.drawn.get(focused).box.focus({ preventScroll: true });
}

function drawLine({ from, to, points }, point, down) {
  const parts = [];
  points.forEach((each, at) => {
    const [x, y] = point(each);
    if (!at) return parts.push(`M${x},${y}`);
    const [before, beforeY] = point(points[at - 1]);
    if (at % 2 === 0) return parts.push(`L${x},${y}`);
    const half = down ? (y - beforeY) / 2 : (x - before) / 2;
    parts.push(down ? `C${before},${beforeY + half} ${x},${y - half} ${x},${y}` : `C${before + half},${beforeY} ${x - half},${y} ${x},${y}`);
  });
  const path = parts.join("");
  const still = svg("path", { class: "edge", d: path });
  const flow = svg("path", { class: "flow", d: path });
  page.lines.push({ from, to, still, flow });
  return svg("g", { class: "way", "data-from": from, "data-to": to }, still, flow);
}

function drawNode(node, at, point, size) {
  const { wide, high, word, figures } = size;
  const [x, y] = point(at);
  const name = svg("text", { class: "node-name", x: 12, y: 39 });
  const parts = {
    title: node.title || node.name, name, node,
    sign: svg("path", { class: "sign" }), word: svg("text", { class: "node-word", x: size === SMALL ? 12 : wide - 25, y: word, "text-anchor": size === SMALL ? "start" : "end" }),
    figures: figures.map(([right, y], place) => svg("text", { class: place < 2 ? "node-figure" : "node-figure side", x: right ? wide - 12 : 12, y, "text-anchor": right ? "end" : "start" })),
  };
  parts.box = svg("g", {
    class: "node", "data-id": node.id, "data-kind": node.kind, transform: `translate(${x - wide / 2},${y - high / 2})`, tabindex: "-1", role: "button",
    onclick: () => select(page.selected === node.id ? "" : node.id),
    onkeydown: (event) => keyed(event, node.id),
    onfocus: () => focusOn(node.id),
  },
  svg("rect", { class: "node-back", width: wide, height: high, rx: 9 }),
  svg("g", { class: "node-icon", transform: "translate(12,9)" }, svg("path", { d: ICONS[node.kind] })),
  svg("text", { class: "node-kind", x: 31, y: 19 }, KINDS[node.kind]),
  name, svg("g", { transform: `translate(${wide - 15},15)` }, parts.sign), parts.word, ...parts.figures);
  page.drawn.set(node.id, parts);
  return parts.box;
}

// The beginning of a name that is too long; the whole of it is in the node's label.
function fit(node, text, room) {
  setText(node, text);
  for (let cut = text.length - 1; cut > 3 && node.getComputedTextLength() > room; cut--) setText(node, `${text.slice(0, cut)}…`);
}

// --- figures ---

function fill() {
  if (!page.shape) return;
  for (const [id, drawn] of page.drawn) {
    const figures = page.nodes[id] ?? {};
    const texts = figuresOf(drawn.node, figures).filter((text) => text || !phone.matches);
    setAttribute(drawn.box, "data-state", figures.state || "none");
    setAttribute(drawn.sign, "d", SIGNS[figures.state] ?? "");
    setText(drawn.word, figures.word ?? "");
    drawn.figures.forEach((each, at) => {
      setText(each, texts[at] ?? "");
      setAttribute(each, "data-bad", figures.dead && at === 3 ? "" : null);
    });
    setAttribute(drawn.box, "aria-label", described(drawn.node, figures));
    setAttribute(drawn.box, "aria-pressed", String(page.selected === id));
  }
  for (const line of page.lines) {
    const flow = flowOf(page.nodes[line.from] ?? {}, page.nodes[line.to] ?? {});
    setAttribute(line.still, "stroke-width", (1.5 + Math.min(8, 1.5 * Math.log10(1 + flow))).toFixed(1));
    setAttribute(line.still.parentNode, "data-flows", flow > 0 ? "" : null);
  }
  panel.fill();
  const { pipeline } = page;
  setText($("title"), page.app ? `${page.app} pipeline` : "Pipeline");
  $("run").hidden = false;
  const [state, text] = runOf(pipeline);
  setAttribute($("run"), "data-state", state);
  setAttribute($("run-sign"), "d", SIGNS[state]);
  setText($("run-text"), text);
}

function runOf(pipeline) {
  if (!pipeline) return ["stopped", "Not run yet"];
  return { starting: ["waiting", "Starting"], running: ["running", "Running"], died: ["failed", "Died"], failed: ["failed", "Failed"], ended: ["stopped", "Stopped"] }[pipeline.state];
}

// What goes from one to the other is no more than either tells.
function flowOf(from, to) {
  if (to.viewers !== undefined) return to.viewers ? from.in ?? 0 : 0;
  return Math.min(from.out ?? 0, to.in ?? Infinity);
}

function banner() {
  const text = page.link === "lost" ? "The connection to riverrun is lost. The picture stands still until it is back; it is tried again by itself." : page.troubles.join(" ");
  $("banner").hidden = !text;
  setText($("banner"), text);
}

// --- going about ---

function focusOn(id) {
  for (const [other, drawn] of page.drawn) setAttribute(drawn.box, "tabindex", other === id ? "0" : "-1");
  page.at = id;
}

function keyed(event, id) {
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    return select(id);
  }
  if (event.key === "Escape") return select("");
  const next = neighbour(event.key, id);
  if (!next) return;
  event.preventDefault();
  page.drawn.get(next).box.focus();
}

function neighbour(pressed, id) {
  const [ahead, back, up, on] = phone.matches ? ["ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight"] : ["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown"];
  if (pressed === ahead) return page.shape.edges.find(([from]) => from === id)?.[1];
  if (pressed === back) return page.shape.edges.find(([, to]) => to === id)?.[0];
  const all = [...page.drawn.keys()];
  if (pressed === up) return all[all.indexOf(id) - 1];
  if (pressed === on) return all[all.indexOf(id) + 1];
  return null;
}

// The address keeps which part is open: the back button and a link do what one expects.
function select(id) {
  const hash = id ? `#${encodeURIComponent(id)}` : "";
  if (location.hash !== hash) history.pushState(null, "", `${location.pathname}${hash}`);
  follow(true);
}

function follow(byHand = false) {
  const before = page.selected;
  let wanted = "";
  try {
    wanted = decodeURIComponent(location.hash.slice(1));
  } catch { /* An address that somebody has typed. */ }
  page.selected = page.drawn.has(wanted) ? wanted : "";
  for (const [id, drawn] of page.drawn) setAttribute(drawn.box, "aria-pressed", String(id === page.selected));
  for (const line of page.lines) setAttribute(line.still.parentNode, "data-near", page.selected && (line.from === page.selected || line.to === page.selected) ? "" : null);
  if (page.selected === before) return;
  panel.show(page.selected ? about(page.selected) : null, byHand);
  document.body.classList.toggle("opened", Boolean(page.selected));
  if (page.selected) page.drawn.get(page.selected).box.scrollIntoView({ block: "nearest", inline: "nearest" });
  else if (before && byHand) page.drawn.get(before)?.box.focus({ preventScroll: true });
}

addEventListener("popstate", () => follow(true));
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && page.selected && !$("ask").open) select("");
});
phone.addEventListener("change", () => {
  if (!page.shape) return;
  drawAll();
  fill();
});
// Ages go on by themselves.
setInterval(() => panel.fill(), 1000);
let hiddenTimer = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(() => stream.close(), HIDDEN);
  else if (!stream.source && !stream.timer) stream.open(LIVE);
});
stream.open(LIVE);
