// Text between tiles: paragraphs, lists, **strong** and `code`. Nothing else is understood, and so nothing else can happen.
import { el } from "./dom.js";

export function words(text) {
  return text.trim().split(/\n\s*\n/).map((part) => {
    const lines = part.split("\n").map((line) => line.trim()).filter(Boolean);
    if (lines.length && lines.every((line) => line.startsWith("- "))) return el("ul", {}, ...lines.map((line) => el("li", {}, ...inline(line.slice(2)))));
    return el("p", {}, ...inline(lines.join(" ")));
  });
}

function inline(text) {
  return text.split(/(\*\*[^*]+\*\*|`[^`]+`)/).filter(Boolean).map((part) => {
    if (part.startsWith("**") && part.length > 4) return el("strong", {}, part.slice(2, -2));
    if (part.startsWith("`") && part.length > 2) return el("code", {}, part.slice(1, -1));
    return part;
  });
}
