// What the alerts page calls things.
import { el, svg } from "./dom.js";
import { clock, day } from "./format.js";

export const SEVERITIES = ["info", "warning", "critical"];

// Shapes besides colours: a disc, a diamond, a triangle.
const SIGNS = { info: "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z", warning: "M0-6L6 0L0 6L-6 0z", critical: "M0-6L6 5H-6z" };

export const sign = (severity) => svg("svg", { class: "sign", viewBox: "-7 -7 14 14", role: "img", "aria-label": severity }, svg("path", { d: SIGNS[severity] ?? SIGNS.info }));

// Text of events: what cannot be seen, or turns the direction of what follows, is written as an escape.
export const plain = (text) => text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (it) => (it === "\n" || it === "\t" ? it : `\\u${it.codePointAt(0).toString(16).padStart(4, "0")}`));

export const named = ({ rule, key }) => (key === "" ? rule : `${rule} · ${plain(key)}`);

// 12:03, with the day when that is another one.
export const at = (ms, now) => `${day(ms) === day(now) ? "" : `${day(ms)} `}${clock(ms, false)}`;

export function lasted(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (days) return hours ? `${days} d ${hours} h` : `${days} d`;
  if (hours) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
  return `${minutes} min`;
}

const TONES = { refused: "bad", undelivered: "bad", expired: "bad", delivered: "good", sent: "good" };
const ORDER = ["refused", "undelivered", "expired", "waiting", "sending", "held", "gathering", "silenced", "dropped", "cancelled", "sent", "delivered"];
const SAID = { gathering: "for a digest", cancelled: "not needed" };

// Where the messages of a case stand, the worst first: «2 delivered», «refused».
export function sentOf(sent) {
  const known = ORDER.filter((state) => sent[state]);
  if (!known.length) return [el("span", { class: "sent" }, "nothing sent")];
  const several = Object.values(sent).reduce((sum, each) => sum + each, 0) > 1;
  return known.map((state) => stateOf(state, several ? `${sent[state]} ` : ""));
}

export const stateOf = (state, before = "") => el("span", { class: "sent", "data-tone": TONES[state] ?? null }, `${before}${SAID[state] ?? state}`);

// An age that goes on by itself.
export const since = (ms) => el("time", { class: "ticking", "data-at": ms, datetime: new Date(ms).toISOString() });

export const toOf = ({ to, others }) => (to.length ? `to ${to.map(plain).join(", ")}${others ? ` and ${others} more` : ""}` : "to nobody");

export const coverOf = ({ rule, key }) => (rule || key ? [rule || "every rule", key && plain(key)].filter(Boolean).join(" · ") : "Everything");

// Parts of a line, with a dot between two that can be copied along.
export const dotted = (...parts) => parts.filter(Boolean).flatMap((part, place) => (place ? [" · ", part] : [part]));

export const count = (value) => new Intl.NumberFormat().format(value);
