// The page: what is declared becomes tiles, the stream fills them, the address keeps which filters are set.
import { $, el, setAttribute, setText } from "./dom.js";
import { clock, day, label, zone, zoneName } from "./format.js";
import { onColours } from "./header.js";
import { States } from "./state.js";
import { Stream } from "./stream.js";
import { TileView } from "./tile.js";
import { Travel } from "./travel.js";

const FILTER = "f.";
// A page that nobody sees lets its connection go after this long.
const HIDDEN = 60000;

const page = {
  app: "", revision: "", boards: [], board: null, filters: new Map(), tables: {}, trouble: null,
  states: new States(), views: new Map(), waiting: new Set(), drawing: false, link: "connecting", next: 0,
  drill(column, value) {
    const same = page.filters.has(column) && String(page.filters.get(column)) === String(value);
    if (same) page.filters.delete(column);
    else page.filters.set(column, value === null ? null : String(value));
    remember();
    show();
  },
  pointAt(box, text) {
    page.views.get(box.closest(".tile")?.dataset.name)?.point(text);
  },
};

const stream = new Stream({
  hello(content) {
    if (content.revision !== page.revision) location.reload();
  },
  frame(content) {
    if (content.tables) page.tables = content.tables;
    if ("trouble" in content) page.trouble = content.trouble;
    const changed = page.states.apply(content);
    if (changed === null) return stream.open(liveUrl());
    changed.forEach((name) => page.waiting.add(name));
    if (content.tables || "trouble" in content) banner();
    draw();
  },
  state(state, next) {
    page.link = state;
    page.next = next ?? 0;
    status();
    banner();
  },
});

const travel = new Travel({ range, show: lookBack, live: goLive });

// --- addresses ---

function encode(value) {
  return value === null ? "~null" : String(value).startsWith("~") ? `~${value}` : String(value);
}

function decode(text) {
  return text === "~null" ? null : text.startsWith("~") ? text.slice(1) : text;
}

function query(extra = {}) {
  const found = new URLSearchParams(extra);
  for (const [name, value] of page.filters) found.set(FILTER + name, encode(value));
  return found.size ? `?${found}` : "";
}

const liveUrl = () => `/api/live/${encodeURIComponent(page.board.name)}${query()}`;

function remember() {
  const board = page.board === page.boards[0] ? {} : { d: page.board.name };
  history.pushState(null, "", `/${query(board)}`);
}

function recall() {
  const found = new URLSearchParams(location.search);
  page.board = page.boards.find((each) => each.name === found.get("d")) ?? page.boards[0];
  page.filters = new Map([...found].filter(([name]) => name.startsWith(FILTER)).map(([name, value]) => [name.slice(FILTER.length), decode(value)]));
  const known = new Set(page.board.tiles.map((tile) => tile.by));
  for (const name of [...page.filters.keys()]) if (!known.has(name)) page.filters.delete(name);
}

// --- what is on the page ---

function show() {
  document.title = `${page.board.title} · riverrun`;
  setText($("title"), page.board.title);
  // With several dashboards their tabs say the title; the name of the app stands before them.
  $("app").hidden = page.boards.length < 2;
  $("title").classList.toggle("unseen", page.boards.length > 1);
  setText($("app"), page.app);
  showBoards();
  showFilters();
  const wanted = page.board.tiles.filter((tile) => !tile.when || page.filters.has(tile.when));
  const keep = new Map(wanted.map((tile) => [tile.name, tile]));
  for (const [name, view] of page.views) {
    if (keep.get(name) === view.tile) continue;
    view.destroy();
    page.views.delete(name);
  }
  wanted.forEach((tile, at) => {
    const view = page.views.get(tile.name) ?? new TileView(tile, page);
    page.views.set(tile.name, view);
    view.rename();
    // The figures of before stay until those of the new filters are there, and say so.
    if (tile.kind !== "text") setAttribute(view.node, "data-waiting", "");
    // Only what is out of place is moved: what moves loses the focus.
    if ($("tiles").children[at] !== view.node) $("tiles").insertBefore(view.node, $("tiles").children[at] ?? null);
  });
  page.states.tiles.clear();
  if (travel.at === null) stream.open(liveUrl());
  else lookBack(travel.at, true);
  status();
}

// An app without dashboards has tables all the same.
function showNone() {
  setText($("title"), page.app);
  for (const id of ["clock", "link", "pause"]) $(id).hidden = true;
  $("tiles").replaceChildren(el("section", { class: "tile none", "aria-labelledby": "none" },
    el("h2", { id: "none" }, "No dashboard yet"),
    el("p", {}, "The pipeline file declares none: ", el("code", {}, "app.dashboard(…)"), " makes one."),
    el("p", {}, "Its tables can be asked on the ", el("a", { href: "/sql" }, "SQL page"), "; how records flow is on the ", el("a", { href: "/pipeline" }, "pipeline page"), ".")));
}

function showBoards() {
  $("boards").hidden = page.boards.length < 2;
  $("boards").replaceChildren(...page.boards.map((board) => el("a", {
    href: `/${board === page.boards[0] ? "" : `?d=${encodeURIComponent(board.name)}`}`,
    "aria-current": board === page.board ? "page" : null,
    onclick(event) {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      page.board = board;
      page.filters.clear();
      remember();
      show();
    },
  }, board.title)));
}

function showFilters() {
  $("filters").hidden = !page.filters.size;
  $("filters").replaceChildren(...[...page.filters].map(([name, value]) => el("li", {}, el("button", {
    type: "button", class: "chip", "aria-label": `Remove the filter ${name}: ${label(value)}`,
    onclick() {
      page.filters.delete(name);
      remember();
      show();
      $("tiles").focus({ preventScroll: true });
    },
  }, el("span", { class: "chip-name" }, name), label(value), el("span", { class: "chip-x", "aria-hidden": "true" }, "×")))));
}

function draw() {
  if (page.drawing) return;
  page.drawing = true;
  requestAnimationFrame(() => {
    page.drawing = false;
    for (const name of page.waiting) {
      const [view, state] = [page.views.get(name), page.states.tiles.get(name)];
      if (!view || !state) continue;
      try {
        view.update(state);
      } catch (error) {
        view.complain(`This tile cannot be drawn: ${error.message}`);
        console.error(error);
      }
    }
    page.waiting.clear();
    tick();
  });
}

function tick() {
  if (!page.board) return;
  for (const view of page.views.values()) view.tick(page.states.now, travel.at);
  const newest = Math.max(0, ...ours().map((each) => each.newest));
  const at = travel.at ?? newest;
  setText($("clock"), at ? `Data to ${day(at) === day(page.states.now) ? "" : `${day(at)} `}${clock(at)} ${zone(at)}` : "");
  setAttribute($("clock"), "title", `Times are shown in ${zoneName()}`);
}

// --- live or not ---

function status() {
  const texts = { connecting: "Connecting", live: "Live", lost: "Reconnecting" };
  const state = travel.at === null ? page.link : "paused";
  const text = travel.at === null ? texts[page.link] : "Paused";
  setText($("link-text"), text);
  if ($("link").dataset.state !== state) {
    $("link").dataset.state = state;
    setText($("said"), { live: "Figures are live", lost: "The connection is lost; it is tried again", paused: "Paused" }[state] ?? "");
  }
}

function banner() {
  const troubled = Object.entries(page.tables).filter(([name, each]) => (each.state === "failing" || each.state === "settling") && used().has(name));
  let text = "";
  if (page.link === "lost" && travel.at === null) text = "The connection to riverrun is lost. Figures stand still until it is back; it is tried again by itself.";
  else if (page.trouble) text = `The store does not answer: ${page.trouble.message}`;
  else if (troubled.length) {
    const [name, { state, detail }] = troubled[0];
    text = state === "settling" ? `${name} is recovering from a failure: its figures may go back for a while.` : `${name} does not get new rows: ${detail}`;
  }
  $("banner").hidden = !text;
  setText($("banner"), text);
}

const used = () => new Set(page.board.tiles.flatMap((tile) => tile.tables));

const ours = () => Object.entries(page.tables).filter(([name]) => used().has(name)).map(([, each]) => each);

// From the oldest row that any of our tables has, to the newest.
function range() {
  const newest = Math.max(0, ...ours().map((each) => each.newest));
  const oldest = ours().filter((each) => each.history && each.oldest).map((each) => each.oldest);
  return [oldest.length ? Math.min(...oldest) : newest - 36e5, newest];
}

let asked = null;

async function lookBack(at, ask) {
  stream.close();
  status();
  banner();
  tick();
  if (!ask) return;
  asked?.abort();
  asked = new AbortController();
  const { signal } = asked;
  await Promise.all([...page.views.values()].filter((view) => view.tile.kind !== "text").map(async ({ tile }) => {
    try {
      const address = `/api/tiles/${encodeURIComponent(page.board.name)}/${encodeURIComponent(tile.name)}${query({ at: String(Math.round(at)) })}`;
      const answer = await fetch(address, { signal });
      const state = await answer.json();
      page.states.tiles.set(tile.name, state);
    } catch (error) {
      if (signal.aborted) return;
      page.states.tiles.set(tile.name, { tile: tile.name, error: { message: `It could not be asked for: ${error.message}` } });
    }
    page.waiting.add(tile.name);
    draw();
  }));
}

function goLive() {
  asked?.abort();
  page.link = "connecting";
  stream.open(liveUrl());
  status();
  banner();
}

// --- begin ---

async function begin() {
  for (let wait = 500; ; wait = Math.min(5000, wait * 2)) {
    try {
      const answer = await fetch("/api/dashboards");
      const content = await answer.json();
      if (!answer.ok) throw new Error(content.error?.message ?? answer.statusText);
      [page.app, page.revision, page.boards, page.tables] = [content.app, content.revision, content.dashboards, content.tables];
      break;
    } catch (error) {
      $("banner").hidden = false;
      setText($("banner"), `riverrun does not answer (${error.message}); it is tried again by itself.`);
      await new Promise((done) => setTimeout(done, wait));
    }
  }
  $("banner").hidden = true;
  if (!page.boards.length) return showNone();
  recall();
  show();
}

onColours(() => page.views.forEach((view) => view.recolour()));
addEventListener("popstate", () => {
  if (!page.board) return;
  recall();
  show();
});
let hiddenTimer = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(() => stream.close(), HIDDEN);
  else if (page.board && travel.at === null && !stream.source && !stream.timer) stream.open(liveUrl());
});
setInterval(tick, 1000);
begin();
