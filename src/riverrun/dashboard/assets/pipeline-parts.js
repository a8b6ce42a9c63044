// What the panel is made of.
import { el } from "./dom.js";
import { bytes } from "./pipeline-words.js";

export async function fetchJson(address, options) {
  const answer = await fetch(address, options);
  // The login is over: the way to the next one is login-state.js's.
  if (answer.status === 401) dispatchEvent(new Event("riverrun-lost"));
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(content.error?.message ?? answer.statusText);
  return content;
}

// A value as the server has made it harmless: text, or bytes as hexadecimal. It is only ever put in as text.
export function valueOf(value) {
  if (value === null) return el("i", { class: "null" }, "none");
  return el("span", { class: "value" }, value.hex !== undefined ? value.hex : value.text, value.cut ? el("i", { class: "cut" }, ` … ${bytes(value.bytes)} in all`) : null);
}

export const headersOf = (headers) => (headers.length ? el("dl", { class: "headers" }, ...headers.flatMap(({ name, value }) => [el("dt", {}, name), el("dd", {}, valueOf(value))])) : null);
