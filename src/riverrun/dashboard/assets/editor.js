// The editor: a plain text area, for keyboards and screen readers what they know, and its text in colours behind it.
// Suggestions are a list box that the area points at. A text of many lines may not call itself a combobox, so it stays a
// text box with the combobox's keys.
import { el, setAttribute, setText } from "./dom.js";

const PAGE = 8;

export class Editor {
  constructor({ box, area, layer, list, said }, { run, change }) {
    Object.assign(this, { box, area, layer, list, said });
    this.language = null;
    this.options = [];
    this.active = -1;
    this.wrong = null;
    this.told = { run, change };
    area.addEventListener("input", (event) => this.typed(event));
    area.addEventListener("keydown", (event) => this.key(event));
    area.addEventListener("blur", () => this.close());
    area.addEventListener("pointerdown", () => this.close());
    // The focus stays in the text.
    list.addEventListener("pointerdown", (event) => event.preventDefault());
    list.addEventListener("click", (event) => {
      const at = [...list.children].indexOf(event.target.closest("[role=option]"));
      if (at >= 0) this.accept(at);
    });
    this.paint();
  }

  get text() {
    return this.area.value;
  }

  // The language may come later than the first letters.
  learn(language) {
    this.language = language;
    this.paint();
  }

  // Before anybody has typed: nothing to undo, and the focus stays where it is.
  begin(text) {
    this.area.value = text;
    this.paint();
  }

  set(text) {
    this.area.focus({ preventScroll: true });
    this.area.select();
    this.write(text);
    this.close();
  }

  // A name at the caret, with room around it.
  insert(text) {
    const { selectionStart: from, selectionEnd: to, value } = this.area;
    const room = /[\p{L}\p{N}_"')]$/u.test(value.slice(0, from)) ? " " : "";
    this.area.focus({ preventScroll: true });
    this.area.setSelectionRange(from, to);
    this.write(`${room}${text}`);
    this.close();
  }

  // As if typed, so that it can be undone.
  write(text) {
    this.writing = true;
    if (!document.execCommand("insertText", false, text)) {
      this.area.setRangeText(text, this.area.selectionStart, this.area.selectionEnd, "end");
      this.area.dispatchEvent(new Event("input"));
    }
    this.writing = false;
  }

  typed(event) {
    this.wrong = null;
    setAttribute(this.area, "aria-invalid", null);
    this.paint();
    this.told.change();
    if (this.writing || event.isComposing) return;
    if ((event.inputType ?? "").startsWith("insert") && event.inputType !== "insertFromPaste" && event.inputType !== "insertLineBreak") this.suggest(false);
    else if (this.options.length) this.suggest(false);
  }

  key(event) {
    if (event.isComposing) return;
    const open = this.options.length > 0;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.close();
      this.told.run();
    } else if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      this.suggest(true);
    } else if (open && this.moves(event)) {
      event.preventDefault();
    } else if (open && event.key === "Escape") {
      event.preventDefault();
      this.close();
    } else if (open && this.active >= 0 && (event.key === "Tab" || event.key === "Enter") && !event.shiftKey) {
      // What is typed in full already needs no completion: Enter is a new line then.
      const whole = this.options[this.active].text.toLowerCase() === this.found.prefix.toLowerCase();
      if (event.key === "Enter" && whole) return this.close();
      event.preventDefault();
      this.accept(this.active);
    } else if (["ArrowLeft", "ArrowRight", "Home", "End", "Enter", "Tab"].includes(event.key)) {
      this.close();
    }
  }

  moves(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return false;
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: PAGE, PageUp: -PAGE }[event.key];
    if (!by) return false;
    const count = this.options.length;
    const at = this.active + by;
    if (Math.abs(by) > 1) this.choose(Math.min(count - 1, Math.max(0, at)));
    else this.choose(this.active < 0 && by < 0 ? count - 1 : (at + count) % count);
    return true;
  }

  suggest(asked) {
    const { selectionStart: caret, selectionEnd } = this.area;
    const found = this.language && caret === selectionEnd ? this.language.suggest(this.text, caret) : null;
    if (!found?.options.length || !(asked || found.prefix || found.wanted)) return this.close();
    const [only] = found.options;
    if (!asked && found.options.length === 1 && only.text.toLowerCase() === found.prefix.toLowerCase() && only.kind !== "function") return this.close();
    this.found = found;
    this.options = found.options;
    this.list.replaceChildren(...this.options.map(({ text, kind, detail }, at) => el("li", { id: `option-${at}`, role: "option", "aria-selected": "false", "data-kind": kind },
      el("span", { class: "option-text" }, text), el("span", { class: "option-detail" }, detail || kind))));
    this.list.hidden = false;
    this.list.scrollTop = 0;
    setAttribute(this.area, "aria-controls", this.list.id);
    this.place(found.from);
    setText(this.said, `${this.options.length} ${this.options.length === 1 ? "suggestion" : "suggestions"}`);
    // With nothing typed yet Enter has to stay a new line: then nothing is chosen.
    this.choose(found.prefix ? 0 : -1);
  }

  choose(at) {
    this.list.children[this.active]?.setAttribute("aria-selected", "false");
    this.active = at;
    const option = this.list.children[at];
    setAttribute(this.area, "aria-activedescendant", option?.id ?? null);
    option?.setAttribute("aria-selected", "true");
    option?.scrollIntoView({ block: "nearest" });
  }

  accept(at) {
    const { insert, back = 0 } = this.options[at];
    const { from, to } = this.found;
    const next = this.text.slice(to);
    this.close();
    this.area.focus({ preventScroll: true });
    this.area.setSelectionRange(from, to);
    // A parenthesis or a space that is there already is not written twice.
    const bare = insert.endsWith("()") && next.startsWith("(") ? insert.slice(0, -2) : next.startsWith(" ") ? insert.trimEnd() : insert;
    // What is put behind a word without having been begun needs a space between.
    this.write(from === to && /[\p{L}\p{N}_"')]$/u.test(this.text.slice(0, from)) ? ` ${bare}` : bare);
    if (bare.endsWith(" ")) this.suggest(false);
    if (back && bare === insert) this.area.setSelectionRange(this.area.selectionStart - back, this.area.selectionStart - back);
  }

  close() {
    if (!this.options.length) return;
    this.options = [];
    this.active = -1;
    this.list.hidden = true;
    this.list.replaceChildren();
    setAttribute(this.area, "aria-activedescendant", null);
    setAttribute(this.area, "aria-controls", null);
    setText(this.said, "");
  }

  // Below the word that is being written.
  place(offset) {
    const at = this.spot(offset);
    const box = this.box.getBoundingClientRect();
    const most = Math.max(0, box.width - this.list.offsetWidth);
    this.list.style.left = `${Math.min(most, Math.max(0, at.left - box.left))}px`;
    this.list.style.top = `${at.bottom - box.top + 3}px`;
  }

  spot(offset) {
    const range = document.createRange();
    const walker = document.createTreeWalker(this.layer, NodeFilter.SHOW_TEXT);
    let left = offset;
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (left <= node.length) {
        range.setStart(node, Math.min(left, Math.max(0, node.length - 1)));
        range.setEnd(node, Math.min(node.length, Math.max(1, left)));
        const found = range.getBoundingClientRect();
        return { left: left < node.length ? found.left : found.right, bottom: found.bottom };
      }
      left -= node.length;
    }
    return this.layer.getBoundingClientRect();
  }

  // The place of an error: marked, and where the caret goes when asked to.
  mark(line, column) {
    const lines = this.text.split("\n");
    const before = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
    // The store counts letters; here some are two.
    const within = [...(lines[line - 1] ?? "")].slice(0, Math.max(0, column - 1)).join("").length;
    this.wrong = Math.min(this.text.length, before + within);
    setAttribute(this.area, "aria-invalid", "true");
    this.paint();
  }

  goToMark() {
    this.area.focus();
    if (this.wrong !== null) this.area.setSelectionRange(this.wrong, this.wrong);
  }

  paint() {
    const found = this.language ? this.language.coloured(this.text) : [{ kind: "space", text: this.text, from: 0, to: this.text.length }];
    const wrong = this.wrong === null ? null : found.find((part) => part.from <= this.wrong && this.wrong < part.to);
    const nodes = found.map((part) => (part === wrong ? el("span", { class: `sql-${part.kind} wrong` }, part.text) : ["space", "word", "sign"].includes(part.kind) ? part.text : el("span", { class: `sql-${part.kind}` }, part.text)));
    // A last line that is empty has no height of its own.
    this.layer.replaceChildren(...nodes, "\u200b");
  }
}
