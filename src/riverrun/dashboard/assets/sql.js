// The SQL page: a question, the tables it can be about, its answer.
import { $, el, setAttribute, setText } from "./dom.js";
import { onColours } from "./header.js";
import { Answer, ChartView, TableView } from "./answer.js";
import { exact, Failure, Question, told } from "./ask.js";
import { Language } from "./complete.js";
import { Editor } from "./editor.js";
import { Tables } from "./tables.js";

const HISTORY = "riverrun-sql-history";
const DRAFT = "riverrun-sql-draft";
const MOST_HISTORY = 50;
// How often the tables' figures are looked at while the page is seen.
const REFRESH = 5000;
const NARROW = matchMedia("(max-width: 800px)");

const page = { app: "riverrun", limits: null, language: null, tables: [], running: null, answer: null, asked: "", view: null, chart: false };

const editor = new Editor({ box: $("editor"), area: $("sql"), layer: $("layer"), list: $("options"), said: $("said") }, { run, change });
const tables = new Tables($("tables"), $("tables-count"), (name, table) => {
  const written = page.language ? page.language.name(name) : name;
  if (table && !editor.text.trim()) editor.set(`select * from ${written} limit 100`);
  else editor.insert(written);
});

// --- asking ---

async function run() {
  const sql = editor.text;
  if (page.running) return say("A question runs already");
  if (!sql.trim()) return fail(new Failure({ message: "The question is empty", parts: { what: "The question is empty", expected: "one that begins with SELECT, WITH or FROM" } }));
  $("from-link").hidden = true;
  remember(sql);
  const found = await asked(sql, {});
  if (!found) return;
  try {
    page.answer = new Answer(exact(await found.body.text()));
  } catch (error) {
    return fail(new Failure({ message: `The answer cannot be read: ${error.message}` }));
  }
  page.asked = sql;
  show();
}

async function save(format) {
  if (page.running) return say("A question runs already");
  const found = await asked(page.asked, { format, limit: page.limits?.most_rows });
  if (!found) return;
  const stamp = new Date().toISOString().slice(0, 19).replace(/[-:]/g, "").replace("T", "-");
  const address = URL.createObjectURL(found.body);
  const link = el("a", { href: address, download: `${page.app}-${stamp}.${format}`, hidden: true });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
  const more = found.answer.headers.get("x-riverrun-more") === "true";
  say(more ? `${link.download} has the first ${page.limits.most_rows.toLocaleString()} rows; there are more` : `${link.download} is saved`, true);
}

// One question at a time, with its clock; null when it failed, which is shown.
async function asked(sql, options) {
  const question = page.running = new Question(sql, options);
  const began = performance.now();
  const most = page.limits?.seconds;
  const tick = () => {
    const taken = (performance.now() - began) / 1000;
    setText($("limits"), `${taken.toFixed(1)} s${most ? ` of at most ${most} s` : ""}`);
    if (most) $("progress").value = Math.min(1, taken / most);
  };
  busy(true);
  tick();
  const timer = setInterval(tick, 100);
  let [found, failure] = [null, null];
  try {
    found = await question.ask();
  } catch (error) {
    failure = error;
  }
  clearInterval(timer);
  page.running = null;
  busy(false);
  if (failure?.code === "QUERY_CANCELLED") say(`Cancelled after ${((performance.now() - began) / 1000).toFixed(1)} s`, true);
  else if (failure) fail(failure, sql === editor.text);
  return found;
}

function busy(is) {
  if (is) {
    $("error").hidden = true;
    say("Running");
  }
  // The focus must not fall on the floor when the button it is on goes.
  const [from, to] = is ? ["run", "cancel"] : ["cancel", "run"];
  const held = document.activeElement === $(from);
  $("run").hidden = is;
  $("cancel").hidden = $("progress").hidden = !is;
  if (held) $(to).focus();
  for (const id of ["csv", "parquet"]) $(id).disabled = is;
  setAttribute($("answer"), "data-waiting", is ? "" : null);
  setAttribute($("answer"), "aria-busy", is ? "true" : null);
  if (!is) showLimits();
}

function showLimits() {
  const { rows, seconds } = page.limits ?? {};
  setText($("limits"), page.limits ? `At most ${seconds} s and ${rows.toLocaleString()} rows` : "");
}

// What is said to those who listen, and beside the buttons where it is news for all.
function say(text, seen = false) {
  setText($("said"), text);
  if (seen) setText($("limits"), text);
}

function fail(error, here = false) {
  const { what, expected, found, hint, lines } = error.parts ?? { what: error.message };
  const sentence = (text) => (/[.?!]$/.test(text) ? text : `${text}.`);
  const rest = [["Expected", expected], ["Found", found]].filter(([, text]) => text);
  $("error").replaceChildren(...[
    el("p", { class: "error-what" }, sentence(what)),
    ...rest.map(([name, text]) => el("p", {}, el("span", { class: "error-name" }, name), ` ${sentence(text)}`)),
    hint ? el("p", {}, sentence(hint)) : null,
    lines?.length ? el("pre", { class: "error-lines" }, lines.join("\n")) : null,
    here && error.line ? el("button", { type: "button", class: "button", onclick: () => editor.goToMark() }, `Go to line ${error.line}, column ${error.column}`) : null,
  ].filter(Boolean));
  $("error").hidden = false;
  setText($("said"), "");
  if (here && error.line) editor.mark(error.line, error.column);
}

// --- the answer ---

function show() {
  const { rows, more, seconds } = page.answer;
  const count = `${rows.length.toLocaleString()} ${rows.length === 1 ? "row" : "rows"}`;
  const text = `${count} in ${seconds < 0.0995 ? `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms` : `${seconds.toFixed(2)} s`}`;
  setText($("summary"), text);
  $("more").hidden = !more;
  setText($("more"), more ? `These are the first ${rows.length.toLocaleString()} rows; there are more. Say WHERE or LIMIT, or export: a file has up to ${page.limits?.most_rows.toLocaleString()}.` : "");
  $("answer").hidden = false;
  say(more ? `${text}; there are more` : text);
  draw();
  refresh();
}

function draw() {
  setAttribute($("as-table"), "aria-pressed", String(!page.chart));
  setAttribute($("as-chart"), "aria-pressed", String(page.chart));
  page.view?.destroy();
  page.view = new (page.chart ? ChartView : TableView)($("rows"));
  page.view.draw(page.answer);
}

function look(chart) {
  page.chart = chart;
  draw();
}

// --- links, drafts, history ---

function store(where, name, value) {
  try {
    if (value === undefined) return where().getItem(name);
    where().setItem(name, value);
  } catch { /* Storage may be forbidden or full: then nothing is kept. */ }
  return null;
}

const kept = () => {
  try {
    const found = JSON.parse(store(() => localStorage, HISTORY) ?? "[]");
    return Array.isArray(found) ? found.filter((each) => typeof each?.sql === "string") : [];
  } catch {
    return [];
  }
};

function remember(sql) {
  const rest = kept().filter((each) => each.sql !== sql);
  store(() => localStorage, HISTORY, JSON.stringify([{ sql, at: Date.now() }, ...rest].slice(0, MOST_HISTORY)));
  showHistory();
}

function showHistory() {
  const entries = kept();
  setText($("history-count"), String(entries.length || ""));
  $("forget").hidden = !entries.length;
  $("history").replaceChildren(...entries.map(({ sql, at }) => el("li", {}, el("button", { type: "button", class: "past", title: sql.slice(0, 1000), onclick: () => editor.set(sql) },
    el("span", { class: "past-sql" }, sql.trim().replace(/\s+/g, " ").slice(0, 200)), el("time", { class: "past-at" }, new Date(at).toLocaleString([], { dateStyle: "short", timeStyle: "short" }))))));
  if (!entries.length) $("history").replaceChildren(el("li", { class: "nothing" }, "Questions that were run are kept here, in this browser."));
}

function linked() {
  const found = new URLSearchParams(location.hash.slice(1)).get("q");
  return found === null || found.length > 65536 ? null : found;
}

// A link fills the editor and waits: who sends it must not ask in the reader's name.
function follow(fresh = false) {
  const sql = linked();
  if (sql === null) return;
  if (fresh) editor.begin(sql);
  else if (sql !== editor.text) editor.set(sql);
  history.replaceState(null, "", `#${new URLSearchParams({ q: sql })}`);
  $("from-link").hidden = false;
}

async function share() {
  const address = `${location.origin}${location.pathname}#${new URLSearchParams({ q: editor.text })}`;
  history.replaceState(null, "", address);
  try {
    await navigator.clipboard.writeText(address);
    say("The link is copied", true);
  } catch {
    say("The link is in the address bar: copy it there", true);
  }
}

function change() {
  store(() => sessionStorage, DRAFT, editor.text);
  $("from-link").hidden = true;
  // An address that says another question than the editor would lie.
  if (location.hash) history.replaceState(null, "", location.pathname);
}

// --- begin ---

async function get(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw await told(answer);
  return answer.json();
}

async function refresh() {
  try {
    page.tables = (await get("/api/tables")).tables;
  } catch (error) {
    $("banner").hidden = false;
    return setText($("banner"), `The tables cannot be asked for: ${error.message || "riverrun does not answer"} It is tried again by itself.`);
  }
  $("banner").hidden = true;
  page.language?.learn(page.tables);
  tables.show(page.tables);
  setAttribute($("sql"), "placeholder", page.tables.length ? `select * from ${page.tables[0].name} limit 100` : null);
}

async function begin() {
  for (let wait = 500; !page.language; wait = Math.min(5000, wait * 2)) {
    try {
      const content = await get("/api/sql");
      page.limits = content.limits;
      page.language = new Language(content);
    } catch {
      await new Promise((done) => setTimeout(done, wait));
    }
  }
  page.language.learn(page.tables);
  editor.learn(page.language);
  showLimits();
}

async function name() {
  try {
    page.app = (await get("/api/dashboards")).app || page.app;
    setText($("app"), page.app);
    document.title = `SQL · ${page.app} · riverrun`;
  } catch { /* The page works without it. */ }
}

$("run").addEventListener("click", run);
$("cancel").addEventListener("click", () => page.running?.cancel());
$("share").addEventListener("click", share);
$("csv").addEventListener("click", () => save("csv"));
$("parquet").addEventListener("click", () => save("parquet"));
$("as-table").addEventListener("click", () => look(false));
$("as-chart").addEventListener("click", () => look(true));
$("forget").addEventListener("click", () => {
  store(() => localStorage, HISTORY, "[]");
  showHistory();
});
addEventListener("hashchange", () => follow());
onColours(() => page.view?.recolour());
setInterval(() => document.hidden || refresh(), REFRESH);
$("tables-box").open = !NARROW.matches;
showHistory();
if (linked() === null) editor.begin(store(() => sessionStorage, DRAFT) ?? "");
else follow(true);
begin();
refresh();
name();
