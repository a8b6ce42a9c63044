// The alerts: what fires, what is held back, what did not arrive, what was. The server says what changed.
import { dead, firing, List, past, silenced } from "./alerts-list.js";
import { Panel } from "./alerts-panel.js";
import { askSilence } from "./alerts-silence.js";
import { at, count, lasted, named, plain, SEVERITIES } from "./alerts-words.js";
import { $, el, setAttribute, setText } from "./dom.js";
import { showCount } from "./header.js";
import { fetchJson } from "./pipeline-parts.js";
import { Stream } from "./stream.js";

const LIVE = "/api/alerts/live";
const HIDDEN = 60000;
const KEYED = ["cases", "dead"];
const JSON_HEAD = { "content-type": "application/json" };

const page = { state: null, link: "connecting", offset: 0, opened: "", rule: "", text: "", fires: new Set() };
const now = () => Date.now() + page.offset;
const doing = { open, acknowledge, silence, end, now };
const lists = {
  firing: new List($("firing"), $("firing-title"), firing(doing), true),
  held: new List($("held"), $("held-title"), firing(doing)),
  history: new List($("history"), $("history-title"), past(doing)),
  dead: new List($("dead"), $("dead-title"), dead({ ...doing, open: openPlace })),
  silences: new List($("silences"), $("silences-title"), silenced(doing)),
};
const panel = new Panel({ now, close: () => open(""), acknowledge, silence });

const stream = new Stream({
  hello() {},
  frame(content) {
    if (content.now) page.offset = content.now - Date.now();
    const { whole, now: _, ...change } = content;
    if (whole) page.state = change;
    else if (page.state) merge(change);
    else return;
    if (whole || Object.keys(change).length) fill(change);
  },
  state(state) {
    page.link = state;
    setText($("link-text"), { connecting: "Connecting", live: "Live", lost: "Reconnecting" }[state]);
    if ($("link").dataset.state !== state && state === "lost") setText($("said"), "The connection is lost; it is tried again");
    $("link").dataset.state = state;
    banner();
  },
});

function merge(change) {
  for (const [name, value] of Object.entries(change)) {
    if (!KEYED.includes(name)) {
      page.state[name] = value;
      continue;
    }
    for (const [id, item] of Object.entries(value)) {
      if (item === null) delete page.state[name][id];
      else page.state[name][id] = item;
    }
  }
}

// --- drawing ---

function fill(change = {}) {
  const it = page.state;
  setAttribute($("lists"), "data-waiting", it.ready ? null : "");
  setText($("title"), it.app ? `${it.app} alerts` : "Alerts");
  document.title = `${it.count ? `(${it.count}) ` : ""}Alerts · ${it.app}`;
  showCount(it.count, it.worst);
  rules();
  banner();
  const nothing = it.ready && !Object.keys(it.cases).length && !it.rules.length;
  $("columns").hidden = !it.ready || nothing;
  $("filter").hidden = !it.ready || nothing;
  $("none").hidden = it.ready && !nothing;
  if (!it.ready) $("none").replaceChildren(el("p", { class: "nothing" }, "Reading what there is …"));
  else if (nothing) $("none").replaceChildren(...howTo());
  if (!it.ready || nothing) return;
  const cases = Object.entries(it.cases).filter(([, each]) => matches(each));
  const urgent = ([, a], [, b]) => Boolean(a.ack) - Boolean(b.ack) || SEVERITIES.indexOf(b.severity) - SEVERITIES.indexOf(a.severity) || b.made - a.made;
  lists.firing.fill(cases.filter(([, each]) => each.list === "firing").sort(urgent));
  lists.held.fill(cases.filter(([, each]) => each.list === "held").sort(urgent));
  lists.history.fill(cases.filter(([, each]) => each.list === "history").sort(([, a], [, b]) => b.made - a.made));
  lists.dead.fill(Object.entries(it.dead).filter(([, each]) => matches(each)).sort(([, a], [, b]) => b.at - a.at));
  lists.silences.fill(it.silences.map((each) => [each.id, each]));
  counts();
  state();
  tick();
  announce();
  if (change.cases && page.opened in change.cases) panel.ask();
  follow();
}

const matches = (it) => (!page.rule || it.rule === page.rule) && (!page.text || `${it.rule} ${it.key} ${it.text}`.toLowerCase().includes(page.text));

function rules() {
  const names = page.state.rules;
  const shown = [...$("rule").options].slice(1).map((each) => each.value);
  if (JSON.stringify(names) === JSON.stringify(shown)) return;
  $("rule").replaceChildren(el("option", { value: "" }, "All rules"), ...names.map((name) => el("option", { value: name }, name)));
  if (!names.includes(page.rule)) page.rule = "";
  $("rule").value = page.rule;
}

function counts() {
  const { totals, rules: names, silences, process } = page.state;
  const watch = process.state === "running" && names.length ? `${names.length} ${names.length === 1 ? "rule watches" : "rules watch"}: ${names.join(", ")}.` : "";
  const empty = {
    firing: `Nothing fires. ${watch}`, held: "Nothing is held back: no quiet hours, no digest, no silence.", dead: "None. Every message found its way, or is on it.",
    history: "Nothing has fired yet.",
  };
  const filtered = page.rule || page.text;
  for (const [name, text] of Object.entries(empty)) {
    const [shown, there] = [lists[name].items.length, totals[name]];
    const known = Object.values(name === "dead" ? page.state.dead : page.state.cases).filter((each) => name === "dead" || each.list === name).length;
    setText($(`${name}-count`), there ? (filtered ? `${count(shown)} of ${count(there)}` : count(there)) : "");
    setText($(`${name}-none`), !there ? text : known < there ? `The ${name === "history" || name === "dead" ? "newest" : "worst"} ${count(known)} of ${count(there)} are shown.` : shown ? "" : "None of them matches the filter.");
    $(`${name}-none`).hidden = !$(`${name}-none`).textContent;
  }
  setText($("silences-count"), silences.length ? count(silences.length) : "");
  setText($("silences-none"), silences.length ? "" : "None. A silence keeps messages back for a key, a rule or everything, and ends by itself.");
  $("silences-none").hidden = Boolean(silences.length);
}

function state() {
  const { process, behind, channels, there } = page.state;
  const runs = { never: "never ran", running: `runs since ${at(process.since, now())}`, ended: `stopped at ${at(process.since, now())}`, died: "died" }[process.state];
  const rows = [["Process", `${runs}${process.state === "running" ? ` (pid ${process.pid} on ${plain(process.host)})` : ""}`, process.state === "running"]];
  if (there && process.state !== "never") rows.push(["Reading", behind ? `${count(behind.offsets)} offsets behind, for ${lasted(now() - behind.since)}` : "up to date", !behind]);
  for (const each of channels) rows.push([plain(each.name), each.problem ? `parked since ${at(each.since, now())}` : each.where ? `sends to ${plain(each.where)}` : "sends", !each.problem]);
  $("facts").replaceChildren(...rows.flatMap(([name, value, good]) => [el("dt", {}, name), el("dd", { "data-bad": good ? null : "" }, value)]));
}

function banner() {
  const it = page.state;
  const said = [];
  if (page.link === "lost") said.push("The connection to riverrun is lost. This page stands still until it is back; it is tried again by itself.");
  else if (it?.ready) said.push(...troubles(it));
  const mark = said.join("\n");
  if ($("banner").dataset.said === mark) return;
  $("banner").dataset.said = mark;
  $("banner").hidden = !said.length;
  $("banner").replaceChildren(...said.map((text) => el("p", {}, ...coded(text))));
}

function troubles({ process, channels, behind, trouble, rules: names, there }) {
  const said = [];
  if (trouble) said.push(`What is shown may be old: ${trouble}`);
  if (process.state === "never" && (there || names.length)) said.push("Alerts have not run yet: nothing is watched, and nobody is told. `riverrun run FILE` starts them, or `riverrun alerts run FILE`.");
  if (process.state === "ended") said.push(`Alerts do not run since ${at(process.since, now())}: nobody is told. \`riverrun run FILE\` starts them, or \`riverrun alerts run FILE\`.`);
  if (process.state === "died") said.push(`The process of alerts (pid ${process.pid}) died: nobody is told until it runs again. It goes on where it stopped.`);
  for (const each of channels) if (each.problem) said.push(`${plain(each.name)}: alerts are parked since ${at(each.since, now())}: ${plain(each.problem)}`);
  if (behind && process.state === "running") said.push(`Alerts are behind since ${at(behind.since, now())}: ${count(behind.offsets)} offsets wait to be judged.`);
  return said;
}

const coded = (text) => text.split(/(`[^`]+`)/).filter(Boolean).map((part) => (part.startsWith("`") ? el("code", {}, part.slice(1, -1)) : part));

function howTo() {
  return [
    el("h2", {}, "No alerts yet"),
    el("p", {}, "An alert is a rule of the pipeline file: when something holds for a key, somebody is told, once."),
    el("pre", {}, "app.alert(\n    \"overload\", \"house_now\",\n    when=\"load_kw > 2.0\", clear=\"load_kw < 1.8\",\n    to=\"phone\", text=\"Your home draws {load_kw:.1f} kW.\",\n)"),
    el("p", {}, ...coded("Then `riverrun run FILE` watches and sends, and this page shows what fires. docs/alerts.md has the rest.")),
  ];
}

// Who does not see the page hears what fires.
function announce() {
  const fires = new Set(lists.firing.items.map(([id]) => id));
  const fresh = [...fires].filter((id) => !page.fires.has(id));
  if (page.announced && fresh.length) setText($("said"), fresh.length === 1 ? `${named(page.state.cases[fresh[0]])} fires` : `${fresh.length} more alerts fire`);
  page.fires = fires;
  page.announced = true;
}

// Ages go on by themselves.
function tick() {
  for (const each of document.querySelectorAll(".ticking")) setText(each, lasted(now() - Number(each.dataset.at)));
}

// --- doing ---

const post = (address, body) => fetchJson(address, { method: "POST", headers: JSON_HEAD, body: JSON.stringify(body) });

const say = (text) => setText($("outcome"), text);

async function acknowledge({ rule, key, number }, button) {
  await once(button, () => post("/api/alerts/ack", { rule, key, number }), "It was not acknowledged");
}

async function silence({ rule = "", key = "" } = {}) {
  const made = await askSilence({ rule, key, rules: page.state.rules }, (wanted) => post("/api/alerts/silence", wanted));
  if (made) say("");
}

async function end({ id }, button) {
  await once(button, () => fetchJson(`/api/alerts/silence/${encodeURIComponent(id)}`, { method: "DELETE" }), "The silence was not ended");
}

// A button that is disabled would lose the focus. When it worked, the next frame takes the button away.
async function once(button, send, failed) {
  if (button.ariaDisabled) return;
  button.ariaDisabled = "true";
  try {
    await send();
    say("");
  } catch (error) {
    say(`${failed}: ${error.message}`);
    button.ariaDisabled = null;
  }
}

// --- going about ---

// The address keeps which case is open: the back button and a link do what one expects.
function open(id) {
  const it = page.state?.cases[id];
  openPlace(it ? { ...it, id } : null);
}

function openPlace(it) {
  const hash = it ? `#${[it.rule, it.number, it.key].map((part) => encodeURIComponent(part)).join("/")}` : "";
  if (location.hash !== hash) history.pushState(null, "", `${location.pathname}${hash}`);
  follow(true);
}

function follow(byHand = false) {
  let place = null;
  try {
    const [rule, number, key] = location.hash.slice(1).split("/").map(decodeURIComponent);
    if (rule && /^\d+$/.test(number)) place = { rule, number: Number(number), key: key ?? "" };
  } catch { /* An address that somebody has typed. */ }
  if (!page.state?.ready) return;
  const wanted = place ? JSON.stringify([place.rule, place.number, place.key]) : "";
  const known = place ? Object.entries(page.state.cases).find(([, it]) => it.rule === place.rule && it.number === place.number && it.key === place.key)?.[0] ?? "" : "";
  for (const each of document.querySelectorAll(".case[data-id]")) setAttribute(each, "aria-current", known && each.dataset.id === known ? "true" : null);
  if (wanted === page.wanted) return void (page.opened = known);
  const before = page.opened;
  Object.assign(page, { wanted, opened: known });
  panel.show(wanted, place, byHand);
  document.body.classList.toggle("opened", Boolean(wanted));
  if (!wanted && before && byHand) document.querySelector(`.case[data-id="${before}"] .case-open`)?.focus({ preventScroll: true });
}

addEventListener("popstate", () => follow(true));
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && page.wanted && !$("ask").open) open("");
});
$("silence").addEventListener("click", () => silence({ rule: page.rule }));
$("filter").addEventListener("submit", (event) => event.preventDefault());
$("rule").addEventListener("change", () => refilter());
$("text").addEventListener("input", () => refilter());
function refilter() {
  page.rule = $("rule").value;
  page.text = $("text").value.trim().toLowerCase();
  if (page.state?.ready) fill();
}
setInterval(() => {
  tick();
  if (page.state?.ready && page.state.behind) state();
}, 1000);
let hiddenTimer = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(() => stream.close(), HIDDEN);
  else if (!stream.source && !stream.timer) stream.open(LIVE);
});

fetchJson("/api/alerts/count").then(({ there }) => {
  if (there) return stream.open(LIVE);
  setAttribute($("lists"), "data-waiting", null);
  $("filter").hidden = $("link").hidden = true;
  $("none").hidden = false;
  $("none").replaceChildren(...howTo());
}, () => stream.open(LIVE));
