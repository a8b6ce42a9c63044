// The tables beside the editor: their columns, how many rows they have and how fresh they are. A click inserts a name.
import { el, setAttribute, setText } from "./dom.js";
import { age } from "./format.js";

// So many columns are shown unfolded; of more, a click shows those of a table.
const MOST_OPEN = 24;

export class Tables {
  constructor(list, count, insert) {
    Object.assign(this, { list, count, insert });
    this.entries = new Map();
    this.shape = "";
  }

  show(tables) {
    const shape = JSON.stringify(tables.map(({ name, columns, key, time }) => [name, columns, key, time]));
    if (shape !== this.shape) {
      const open = new Set([...this.entries].filter(([, entry]) => !entry.columns.hidden).map(([name]) => name));
      const all = !this.shape && tables.reduce((sum, each) => sum + each.columns.length, 0) <= MOST_OPEN;
      this.shape = shape;
      this.entries = new Map(tables.map((table) => [table.name, this.make(table, all || open.has(table.name))]));
      this.list.replaceChildren(...[...this.entries.values()].map((entry) => entry.item));
      if (!tables.length) this.list.replaceChildren(el("li", { class: "nothing" }, "No tables yet: they come when the pipeline runs."));
    }
    setText(this.count, String(tables.length || ""));
    for (const table of tables) this.freshen(this.entries.get(table.name), table);
  }

  make(table, open) {
    const columns = el("ul", { class: "columns", hidden: !open }, ...table.columns.map((column) => {
      const marks = [table.key.includes(column.name) && "key", table.time === column.name && "time"].filter(Boolean).join(", ");
      return el("li", {}, el("button", { type: "button", class: "column", onclick: () => this.insert(column.name, null) },
        el("span", { class: "column-name" }, column.name), marks ? el("span", { class: "column-mark" }, marks) : null, el("span", { class: "column-type" }, column.type)));
    }));
    const fold = el("button", { type: "button", class: "unfold", "aria-expanded": String(open), "aria-label": `Columns of ${table.name}`,
      onclick() {
        columns.hidden = !columns.hidden;
        setAttribute(fold, "aria-expanded", String(!columns.hidden));
      } }, el("span", { "aria-hidden": "true" }, "›"));
    const state = el("span", { class: "table-state" });
    const item = el("li", {}, el("div", { class: "table-line" }, fold,
      el("button", { type: "button", class: "table-name", title: `Insert ${table.name}`, onclick: () => this.insert(table.name, table) }, table.name), state), columns);
    return { item, columns, state };
  }

  freshen(entry, { rows, updated, state, detail }) {
    const fresh = updated ? ` · ${age(Math.max(0, Date.now() - updated * 1000))}` : "";
    const bad = state === "failing" || state === "settling";
    setText(entry.state, bad ? state : `${(rows ?? 0).toLocaleString()} rows${fresh}`);
    setAttribute(entry.state, "data-state", state);
    setAttribute(entry.state, "title", detail || (updated ? `The newest row came in at ${new Date(updated * 1000).toLocaleString()}` : null));
  }
}
