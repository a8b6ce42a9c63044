// Questions to the store: asked as JSON, known by a name, and ended by it.

export class Failure extends Error {
  constructor({ code = "", message = "", parts = {}, fields = {} }) {
    super(message || parts.what || "");
    this.code = code;
    this.parts = { what: message, expected: "", found: "", hint: "", lines: [], ...parts };
    // A syntax error has its place as numbers, the others in words.
    const place = fields.line ? [fields.line, fields.column] : this.parts.what.match(/\(line (\d+), column (\d+)\)/)?.slice(1) ?? [0, 0];
    [this.line, this.column] = place.map(Number);
  }
}

export async function told(answer) {
  // The login is over: the way to the next one is login-state.js's.
  if (answer.status === 401) dispatchEvent(new Event("riverrun-lost"));
  const content = await answer.json().catch(() => ({}));
  return new Failure(content.error ?? { message: `riverrun answers ${answer.status} ${answer.statusText}`.trim() });
}

export class Question {
  constructor(sql, options = {}) {
    this.sql = sql;
    this.options = options;
    this.name = `page-${[...crypto.getRandomValues(new Uint8Array(12))].map((each) => each.toString(16).padStart(2, "0")).join("")}`;
    this.control = new AbortController();
    this.cancelled = false;
  }

  // The answer as it came; a Failure otherwise.
  async ask() {
    let answer;
    try {
      answer = await fetch("/api/query", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ sql: this.sql, name: this.name, ...this.options }),
        signal: this.control.signal,
      });
      if (answer.ok) return { answer, body: await answer.blob() };
    } catch (error) {
      if (this.cancelled) throw new Failure({ code: "QUERY_CANCELLED", message: "It was cancelled." });
      throw new Failure({ message: `riverrun does not answer: ${error.message}`, parts: { what: "riverrun does not answer", hint: "Look whether riverrun serve still runs", found: error.message } });
    }
    throw await told(answer);
  }

  // Where the store does not know of it yet, hanging up ends it too.
  async cancel() {
    this.cancelled = true;
    const ended = await fetch(`/api/query/${encodeURIComponent(this.name)}`, { method: "DELETE" }).catch(() => null);
    if (!ended?.ok) this.control.abort();
  }
}

// Numbers as they were sent, where JavaScript's own would lose digits.
export function exact(text) {
  return JSON.parse(text, (_, value, context) => (typeof value === "number" && context?.source && String(value) !== context.source ? context.source : value));
}
