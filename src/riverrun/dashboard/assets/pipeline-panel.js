// The side panel: all that is known of one part of the pipeline. What moves comes with the picture; the rest is asked for when the
// panel opens, and by its button.
import { $, el, setAttribute, setText, svg } from "./dom.js";
import { age, clock, day } from "./format.js";
import { DeadLetters } from "./pipeline-dead.js";
import { fetchJson, headersOf, valueOf } from "./pipeline-parts.js";
import { bytes, count, ICONS, KINDS, millis, rate, SIGNS } from "./pipeline-words.js";

export class Panel {
  constructor({ node, about, past, now, close }) {
    Object.assign(this, { node, about, past, now, close, shown: null, asked: null });
  }

  show(about, byHand) {
    this.asked?.abort();
    this.shown = about;
    this.told = "";
    $("panel").hidden = !about;
    if (!about) return $("panel").replaceChildren();
    this.title = el("h2", { id: "panel-title", tabindex: "-1" }, about.title || about.name);
    this.sign = svg("path", { class: "sign" });
    this.state = el("p", { class: "state" }, svg("svg", { class: "sign", viewBox: "-7 -7 14 14", "aria-hidden": "true" }, this.sign), this.word = el("span"));
    this.live = el("div", { class: "live" });
    this.fault = el("div", { class: "fault" });
    this.more = el("div", { class: "more" });
    $("panel").replaceChildren(
      el("div", { class: "panel-head" },
        svg("svg", { class: "panel-icon", viewBox: "0 0 14 14", "aria-hidden": "true" }, svg("path", { d: ICONS[about.kind] })),
        el("p", { class: "panel-kind" }, KINDS[about.kind], about.about ? ` · ${about.about}` : ""),
        el("button", { type: "button", class: "button quiet", "aria-label": "Ask again", title: "Ask again", onclick: () => this.ask() }, "↻"),
        el("button", { type: "button", class: "button quiet", "aria-label": "Close", title: "Close (Escape)", onclick: this.close }, "×")),
      this.title, this.state, this.live, this.fault, this.more);
    this.fill();
    this.ask();
    if (byHand) this.title.focus({ preventScroll: true });
  }

  // --- what moves ---

  fill() {
    if (!this.shown) return;
    const figures = this.node(this.shown.id) ?? {};
    const { kind } = this.shown;
    setAttribute(this.state, "data-state", figures.state || "none");
    setAttribute(this.sign, "d", SIGNS[figures.state] ?? "");
    setText(this.word, figures.word ?? "");
    const rows = { stream: streamFacts, topic: topicFacts, table: tableFacts, source: sourceFacts, dashboard: dashboardFacts }[kind]?.(figures, this.now(), this.shown) ?? [];
    const parts = [facts(rows)];
    if (kind !== "dashboard" && figures.state) parts.push(this.lines(kind));
    if (kind === "stream" && figures.account) parts.push(account(figures.account));
    this.live.replaceChildren(...parts);
    // Left alone while it is the same: somebody may be copying it.
    const fault = figures.error || figures.detail || "";
    if (fault !== this.told) this.fault.replaceChildren(...(fault ? [el("h3", {}, figures.state === "failed" ? "Error" : "Last error"), el("pre", { class: "error", tabindex: "0" }, fault)] : []));
    this.told = fault;
  }

  lines(kind) {
    const past = this.past(this.shown.id);
    const wanted = { stream: [["in", "Records in", rate], ["lag", "Lag", count], ["batch_ms", "Batch time", millis]], table: [["in", "Records in", rate], ["lag", "Lag", count]], source: [["out", "Records out", rate]], topic: [["in", "Records in", rate]] }[kind] ?? [];
    return el("div", { class: "sparks" }, ...wanted.map(([name, label, write]) => spark(past.map((each) => each[name]), label, write)).filter(Boolean));
  }

  // --- what is asked for ---

  async ask() {
    const { kind, name } = this.shown;
    if (!["topic", "stream", "table"].includes(kind)) return this.more.replaceChildren(...(kind === "dashboard" ? [el("p", {}, el("a", { href: `/?d=${encodeURIComponent(name)}` }, "Open the dashboard"))] : []));
    this.asked?.abort();
    this.asked = new AbortController();
    const { signal } = this.asked;
    setAttribute(this.more, "aria-busy", "true");
    let made = [];
    try {
      const found = await fetchJson(`/api/pipeline/${kind}/${encodeURIComponent(name)}`, { signal });
      made = { topic: topicMore, stream: streamMore, table: tableMore }[kind](found, signal);
    } catch (error) {
      if (signal.aborted) return;
      made = [el("p", { class: "trouble" }, error.message)];
    }
    setAttribute(this.more, "aria-busy", null);
    this.more.replaceChildren(...made.filter(Boolean));
  }
}

// --- facts ---

function facts(rows) {
  const shown = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", { class: "facts" }, ...shown.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

const ago = (at, now) => (at ? `${stamp(at, now)} (${age(Math.max(0, now - at))}${now - at < 1000 ? "" : " ago"})` : null);
const stamp = (at, now) => `${day(at) === day(now) ? "" : `${day(at)} `}${clock(at)}`;

function streamFacts(it, now, { topic }) {
  if (it.in === undefined) return [["Writes", topic]];
  return [
    ["Speed", it.speed], ["In", rate(it.in)], ["Out", rate(it.out)], ["Lag", it.lag === null ? "–" : `${count(it.lag)} offsets`],
    ["Batch", it.batch < 0 ? "none yet" : `no. ${count(it.batch)}, ${millis(it.batch_ms)}`],
    ["State", it.state_rows || it.state_bytes ? `${count(it.state_rows)} rows, ${bytes(it.state_bytes)}` : "none"],
    ["Watermark", it.watermark ? stamp(it.watermark, now) : null], ["Last record", ago(it.last, now)],
    ["Restarts", count(it.restarts)], ["Writes", topic], ["Replay", it.replaying ? "computes again what was told before" : null],
  ];
}

const topicFacts = (it) => (it.records === undefined ? [] : [["Flow", rate(it.in)], ["Records", `${it.about ? "about " : ""}${count(it.records)}`], ["Partitions", count(it.partitions)]]);

function tableFacts(it, now) {
  if (it.rows === undefined) return [];
  return [["Rows", count(it.rows)], ["In", rate(it.in)], ["Lag", it.lag === null ? "–" : `${count(it.lag)} offsets`], ["Newest row", it.newest ? stamp(it.newest, now) : null],
    ["Last came in", ago(it.updated, now)], ["Size", it.bytes === null ? null : bytes(it.bytes)]];
}

const sourceFacts = (it, now, { topic, about }) => (topic ? [["Writes", topic], ["Flow", rate(it.out)]] : [["Format", about]]);

const dashboardFacts = (it) => [["Viewers", count(it.viewers)]];

// In = out + filtered + dead + late, as a sum that is right or says why it cannot be.
function account(it) {
  const parts = [["out", it.out], ["filtered", it.filtered], ["dead", it.dead_letters], ["late", it.late]];
  const right = it.exact && it.closes;
  return el("section", { class: "account" },
    el("h3", {}, "Account"),
    el("p", { class: "sum" }, term("read", it.read), el("span", { class: "sign-of" }, it.exact ? "=" : "→"), ...parts.flatMap(([name, value], at) => [at ? el("span", { class: "sign-of" }, it.exact ? "+" : "·") : null, term(name, value)])),
    el("p", { class: "verdict", "data-right": right ? "" : null }, right ? "✓ Every record is accounted for." : it.exact ? "The batch under way is not counted yet." : it.note || "Not to the record."),
    it.expired ? el("p", { class: "verdict" }, `${count(it.expired)} records were removed by retention before they were read.`) : null);
}

const term = (name, value) => el("span", { class: "term", "data-name": name, "data-some": value ? "" : null }, el("b", {}, count(value)), ` ${name}`);

function spark(values, label, write) {
  const known = values.map((value) => value ?? null);
  const last = known.at(-1);
  if (last === null || known.length < 2) return null;
  const most = Math.max(1e-9, ...known.filter((value) => value !== null));
  const points = known.map((value, at) => (value === null ? null : `${((at / (known.length - 1)) * 100).toFixed(1)},${(30 - (value / most) * 28).toFixed(1)}`)).filter(Boolean);
  return el("figure", { class: "spark-box" },
    el("figcaption", {}, label, el("b", {}, write(last))),
    svg("svg", { class: "spark", viewBox: "0 0 100 32", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("polyline", { class: "spark-line", points: points.join(" ") })),
    el("span", { class: "most" }, `most ${write(most < 1e-8 ? 0 : most)}`));
}

// --- more ---

function table(heads, rows, caption) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, el("table", {},
    el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col", "data-right": head.startsWith(">") ? "" : null }, head.replace(/^>/, ""))))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((value, at) => el("td", { "data-right": heads[at].startsWith(">") ? "" : null }, value === null || value === undefined ? "–" : String(value))))))));
}

const section = (title, ...parts) => el("section", {}, el("h3", {}, title), ...parts);

function topicMore(found, signal) {
  if (found.missing) return [el("p", {}, "The topic is not made yet: `riverrun run` makes it.")];
  const total = found.partitions.reduce((sum, each) => sum + each.end - each.first, 0);
  const about = [["Event", found.event], ["Replicas", count(found.replicas)], ["On disk", found.bytes === null ? null : bytes(found.bytes)], ["A record", found.bytes && total ? `about ${bytes(Math.round(found.bytes / found.replicas / total))} on disk` : null]];
  return [
    facts(about),
    new Records(found.id.replace("topic:", ""), signal).box,
    found.dead ? new DeadLetters(found.id.replace("topic:", ""), signal).box : null,
    section("Partitions", table(["Partition", ">First", ">Next", ">Records", ">Leader", "In sync"], found.partitions.map((each) => [each.partition, count(each.first), count(each.end), count(each.end - each.first), each.leader, each.in_sync]), "Partitions")),
    section("Settings", table(["Setting", "Value", "From"], found.config.map((each) => [each.name, each.value, each.origin]), "Settings")),
  ];
}

function streamMore(found, signal) {
  return [
    section("Where it stands", table(["Partition", ">Position", ">End", ">Lag"], found.partitions.map((each) => [each.place, each.position === null ? null : count(each.position), count(each.end), each.lag === null ? null : count(each.lag)]), "Where it stands"),
      el("p", { class: "hint" }, `Consumer group ${found.group}`)),
    ...found.dead_of.map((topic) => new DeadLetters(topic, signal).box),
  ];
}

function tableMore(found) {
  if (found.missing) return [el("p", {}, "The store has no such table yet.")];
  const keep = found.retention_ms < 0 ? "for ever" : age(found.retention_ms);
  return [
    facts([["Topic", found.topic], ["Key", found.key.join(", ")], ["Rows of a key", found.upserts ? "the newest counts" : "all are kept"], ["Time", found.time], ["Kept", keep]]),
    section("Columns", table(["Column", "Type"], found.columns.map((each) => [each.name, each.type]), "Columns")),
    section("Positions", table(["Partition", ">Next", ">End", ">Lag"], found.partitions.map((each) => [each.place, count(each.position), each.end === null ? null : count(each.end), each.end === null ? null : count(Math.max(0, each.end - each.position))]), "Positions")),
  ];
}

// --- records ---

class Records {
  constructor(topic, signal) {
    this.topic = topic;
    this.signal = signal;
    this.button = el("button", { type: "button", class: "button", onclick: () => this.look() }, "Look at the newest records");
    this.list = el("div", { class: "records" });
    this.box = section("Records", this.button, this.list);
  }

  async look() {
    setAttribute(this.button, "disabled", "");
    try {
      const found = await fetchJson(`/api/pipeline/topic/${encodeURIComponent(this.topic)}/records?count=20`, { signal: this.signal });
      this.list.replaceChildren(...(found.records.length ? [...found.records.map(record), found.whole ? null : el("p", { class: "hint" }, "Reading took too long: newer ones may be missing.")].filter(Boolean) : [el("p", {}, "The topic is empty.")]));
      setText(this.button, "Look again");
    } catch (error) {
      if (!this.signal.aborted) this.list.replaceChildren(el("p", { class: "trouble" }, error.message));
    }
    setAttribute(this.button, "disabled", null);
  }
}

const record = (it) => el("article", { class: "record" },
  el("p", { class: "place" }, el("b", {}, it.place), it.at ? ` ${day(it.at)} ${clock(it.at)}` : "", ` · ${bytes(it.bytes)}`),
  el("p", { class: "key" }, "key ", valueOf(it.key)),
  el("pre", {}, valueOf(it.value)),
  headersOf(it.headers));
