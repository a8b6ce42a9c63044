// SQL as far as an editor needs it: its parts, and what could come next.

const PART = /(--[^\n]*|\/\*[^]*?(?:\*\/|$))|('(?:[^']|'')*(?:'|$))|("(?:[^"]|"")*(?:"|$))|(\d[\d_]*(?:\.\d*)?(?:e[+-]?\d+)?)|([\p{L}_][\p{L}\p{N}_$]*)|(\s+)|([^])/giu;
const KINDS = ["comment", "text", "quoted", "number", "word", "space", "sign"];
const MOST = 60;
// After these an operand comes; after an operand, one of these or a word.
const CLAUSES = new Set(["select", "from", "join", "where", "by", "having", "on", "using", "limit", "offset", "qualify", "with", "union", "except", "intersect", "values"]);
// What a name after FROM is not.
const NO_ALIAS = new Set(["where", "join", "left", "right", "full", "cross", "inner", "on", "using", "group", "order", "limit", "having", "union", "qualify", "intersect", "except", "offset", "as"]);

// After an operand these are what people mostly want.
const NEXT = ["from", "where", "join", "left join", "on", "using", "and", "or", "group by", "order by", "limit", "as"];

export function parts(text) {
  const found = [];
  for (const match of text.matchAll(PART)) {
    const kind = KINDS[match.slice(1).findIndex((each) => each !== undefined)];
    found.push({ kind, text: match[0], from: match.index, to: match.index + match[0].length });
  }
  return found;
}

const said = (part) => (part?.kind === "word" ? part.text.toLowerCase() : part?.kind === "sign" ? part.text : "");
const named = (part) => (part?.kind === "quoted" ? part.text.slice(1, -1).replaceAll('""', '"') : part?.kind === "word" ? part.text : "");
const isName = (part) => part?.kind === "word" || part?.kind === "quoted";

export class Language {
  constructor({ words, types, functions }) {
    this.phrases = words;
    this.types = types;
    this.functions = new Map(functions.map((each) => [each.name, each]));
    this.words = new Set(words.flatMap((each) => each.split(" ")));
    this.reserved = new Set(words.map((each) => each.split(" ")[0]));
    this.learn([]);
  }

  learn(tables) {
    this.tables = tables;
    this.columns = new Set(tables.flatMap((table) => table.columns.map((each) => each.name.toLowerCase())));
  }

  isKeyword(word) {
    return this.words.has(word) && !this.columns.has(word);
  }

  // How a name is written: in quotation marks where it would be read as something else.
  name(text) {
    const plain = /^[a-z_][a-z0-9_]*$/i.test(text) && (text === "at" || !this.reserved.has(text.toLowerCase()));
    return plain ? text : `"${text.replaceAll('"', '""')}"`;
  }

  // Parts with the kinds that colours go by.
  coloured(text) {
    const found = parts(text);
    found.forEach((part, at) => {
      if (part.kind !== "word") return;
      const word = part.text.toLowerCase();
      const next = found.slice(at + 1, at + 3).find((each) => each.kind !== "space");
      if (this.functions.has(word) && next?.text === "(") part.kind = "function";
      else if (this.isKeyword(word) && found[at - 1]?.text !== ".") part.kind = "keyword";
    });
    return found;
  }

  // What could stand at the caret: { from, to, prefix, options: [{ text, kind, detail, insert, back }] }, or null.
  suggest(text, caret) {
    const all = parts(text);
    const here = all.find((part) => part.from < caret && caret <= part.to);
    if (here && ["comment", "text", "number"].includes(here.kind)) {
      // Behind a closing quotation mark something new begins.
      const closed = here.kind === "text" && caret === here.to && here.text.length > 1 && here.text.endsWith("'");
      return closed ? { from: caret, to: caret, prefix: "", options: [], wanted: false } : null;
    }
    const inside = isName(here);
    const open = here?.kind === "quoted" && (here.text.length < 2 || !here.text.endsWith('"'));
    const [from, to] = inside ? [here.from, open ? caret : here.to] : [caret, caret];
    const prefix = inside ? text.slice(from, caret).replace(/^"/, "").replace(/"$/, "") : "";
    const before = all.filter((part) => part.to <= from && part.kind !== "space" && part.kind !== "comment");
    const place = this.place(before, from > 0 && before.at(-1)?.to === from && isName(before.at(-1)));
    if (!place) return null;
    // A name that is not closed yet must not swallow the tables behind it.
    const rest = open ? parts(text.slice(0, from) + " ".repeat(caret - from) + text.slice(caret)) : all;
    const options = this.options(place, before, rest, prefix, here?.kind === "quoted");
    return { from, to, prefix, options, wanted: place.wanted };
  }

  // Which kind of thing the caret waits for.
  place(before, glued) {
    const last = before.at(-1);
    if (glued) return null;
    if (said(last) === ".") return { owner: named(before.at(-2)), wanted: true };
    if (said(last) === "as") return this.inCast(before) ? { types: true } : null;
    const clause = this.clause(before);
    if (clause === "from" || clause === "join") {
      if (["from", "join", ","].includes(said(last))) return { tables: true, wanted: said(last) !== "," };
      return { words: true, inFrom: true };
    }
    const operand = last && (["number", "text", "quoted"].includes(last.kind) || said(last) === ")" || said(last) === "*" || (last.kind === "word" && !this.isKeyword(said(last))));
    return operand ? { words: true } : { columns: true, words: true, using: said(before.at(-2)) === "using" };
  }

  // The nearest clause that is open at the same depth.
  clause(before) {
    let depth = 0;
    for (const part of before.slice().reverse()) {
      if (said(part) === ")") depth += 1;
      else if (said(part) === "(" && depth > 0) depth -= 1;
      else if (said(part) === "(" && !depth) return "(";
      else if (!depth && CLAUSES.has(said(part))) return said(part);
    }
    return "";
  }

  inCast(before) {
    const open = before.findLastIndex((part) => said(part) === "(");
    return open > 0 && ["cast", "try_cast"].includes(said(before[open - 1]));
  }

  // The tables that a question names, by their aliases, and the names its WITH makes.
  sources(all) {
    const tokens = all.filter((part) => part.kind !== "space" && part.kind !== "comment");
    const found = new Map();
    const made = [];
    let listing = false;
    tokens.forEach((part, at) => {
      const word = said(part);
      if (isName(part) && said(tokens[at + 1]) === "as" && said(tokens[at + 2]) === "(" && ["with", ","].includes(said(tokens[at - 1]))) made.push(named(part));
      if (word === "from" || word === "join") listing = true;
      else if (part.kind === "word" && NO_ALIAS.has(word) && word !== "as") listing = false;
      const begins = ["from", "join"].includes(said(tokens[at - 1])) || (listing && said(tokens[at - 1]) === ",");
      if (!begins || !isName(part)) return;
      const table = this.tables.find((each) => each.name.toLowerCase() === named(part).toLowerCase());
      const next = tokens[at + 1 + (said(tokens[at + 1]) === "as" ? 1 : 0)];
      const alias = isName(next) && !NO_ALIAS.has(said(next)) ? named(next) : named(part);
      if (table) found.set(alias.toLowerCase(), { alias, table });
    });
    return { found, made };
  }

  options(place, before, all, prefix, quoted) {
    const { found, made } = this.sources(all);
    const listed = [];
    const column = ({ name, type }, table) => listed.push({ text: name, kind: "column", detail: `${type} · ${table}`, insert: this.name(name), rank: 0 });
    if ("owner" in place) {
      const owner = found.get(place.owner.toLowerCase())?.table ?? this.tables.find((each) => each.name.toLowerCase() === place.owner.toLowerCase());
      owner?.columns.forEach((each) => column(each, owner.name));
      return ranked(listed, prefix);
    }
    if (place.types) this.types.forEach((text) => listed.push({ text, kind: "type", detail: "", insert: text, rank: 0 }));
    if (place.tables) {
      made.forEach((text) => listed.push({ text, kind: "name", detail: "WITH", insert: this.name(text), rank: 0 }));
      this.tables.forEach(({ name, columns }) => listed.push({ text: name, kind: "table", detail: `${columns.length} columns`, insert: this.name(name), rank: 0 }));
      this.call(listed, prefix, (each) => each.use === "rows", 1);
    }
    if (place.columns) {
      const sources = found.size ? [...found.values()] : this.tables.map((table) => ({ alias: table.name, table }));
      const count = (name) => sources.filter(({ table }) => table.columns.some((each) => each.name === name)).length;
      for (const { alias, table } of sources) {
        for (const each of table.columns) {
          column(each, table.name);
          // What several tables of the question have is written with its table.
          if (found.size > 1 && !place.using && count(each.name) > 1) listed.at(-1).insert = `${this.name(alias)}.${this.name(each.name)}`;
        }
      }
      for (const { alias, table } of found.values()) listed.push({ text: alias, kind: alias === table.name ? "table" : "alias", detail: alias === table.name ? "" : table.name, insert: this.name(alias), rank: 3 });
      this.call(listed, prefix, (each) => each.use !== "rows", 1);
    }
    if (place.words && !quoted) this.phrase(listed, before.at(-1), prefix, place);
    return ranked(listed, prefix);
  }

  call(listed, prefix, wanted, rank) {
    for (const each of this.functions.values()) {
      if (!wanted(each)) continue;
      const detail = [each.use === "scalar" ? "function" : each.use, each.result].filter(Boolean).join(" · ");
      listed.push({ text: each.name, kind: "function", detail, insert: `${cased(each.name, prefix)}()`, back: each.most ? 1 : 0, rank });
    }
  }

  // Words, and the rest of those that have begun: after GROUP comes BY.
  phrase(listed, last, prefix, { columns, inFrom }) {
    const add = (text, rank) => listed.push({ text, kind: "word", detail: "", insert: `${cased(text, prefix)} `, rank });
    const begun = said(last) ? this.phrases.filter((each) => each.startsWith(`${said(last)} `)) : [];
    begun.forEach((each) => add(each.slice(said(last).length + 1), -2));
    if (!columns) NEXT.filter((each) => !(inFrom && each === "from")).forEach((each) => add(each, -1));
    this.phrases.forEach((each) => add(each, columns ? 2 : 0));
  }
}

// Who writes SELECT in capitals goes on so.
const cased = (text, prefix) => (prefix && prefix === prefix.toUpperCase() && prefix !== prefix.toLowerCase() ? text.toUpperCase() : text);

function ranked(listed, prefix) {
  const looked = prefix.toLowerCase();
  const seen = new Set();
  return listed
    .map((each, order) => ({ each, order, match: match(each.text.toLowerCase(), looked) }))
    .filter(({ match: found }) => found >= 0)
    .sort((one, other) => one.match - other.match || one.each.rank - other.each.rank || one.order - other.order)
    .filter(({ each }) => {
      const key = `${each.kind} ${each.text} ${each.kind === "column" ? each.detail : ""}`;
      return !seen.has(key) && seen.add(key);
    })
    .slice(0, MOST)
    .map(({ each }) => each);
}

function match(text, looked) {
  if (text.startsWith(looked)) return 0;
  if (text.split(/[_\s]/).some((part) => part.startsWith(looked))) return 1;
  return looked.length > 1 && text.includes(looked) ? 2 : -1;
}
