// What all pages have at the top: the way to the others, and the colours.
import "./login-state.js";
import { $, el, setAttribute } from "./dom.js";

const PAGES = [["/", "Dashboards"], ["/sql", "SQL"], ["/pipeline", "Pipeline"], ["/alerts", "Alerts"]];
const COUNT_MS = 10000;
const THEMES = ["auto", "light", "dark"];
const NAMES = { auto: "as the system", light: "light", dark: "dark" };
const told = new Set();

// Call back when the colours change: what is drawn on a canvas has to be drawn again.
export function onColours(call) {
  told.add(call);
}

const chosen = () => document.documentElement.dataset.theme ?? "auto";

function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem("riverrun-theme", name);
  } catch { /* Then it is for this page only. */ }
  nameTheme();
  recolour();
}

function nameTheme() {
  const text = `Colours: ${NAMES[chosen()]}`;
  setAttribute($("theme"), "aria-label", text);
  setAttribute($("theme"), "title", text);
  setAttribute($("theme"), "data-theme-shown", chosen());
}

const recolour = () => told.forEach((call) => call());

$("pages").replaceChildren(...PAGES.map(([address, name]) => el("a", { href: address, "aria-current": location.pathname === address ? "page" : null }, name)));
$("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(chosen()) + 1) % THEMES.length]));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
nameTheme();
// How many alerts fire that nobody has acknowledged. The alerts page knows; the others ask now and then.
export function showCount(count, worst) {
  const link = $("pages").querySelector('[href="/alerts"]');
  link.querySelector(".badge")?.remove();
  if (count) link.append(el("span", { class: "badge", "data-severity": worst, title: `${count} fire and nobody has acknowledged them` }, count > 99 ? "99+" : String(count), el("span", { class: "unseen" }, " firing")));
}

async function askCount() {
  if (document.hidden) return;
  const answer = await fetch("/api/alerts/count").catch(() => null);
  if (answer?.status === 401) return void dispatchEvent(new Event("riverrun-lost"));
  if (!answer?.ok) return;
  const { count, worst } = await answer.json();
  showCount(count, worst);
}

if (location.pathname !== "/alerts") {
  askCount();
  setInterval(askCount, COUNT_MS);
  document.addEventListener("visibilitychange", askCount);
}
// What sticks below the header has to know how high it is.
const header = document.querySelector(".top");
new ResizeObserver(() => document.documentElement.style.setProperty("--top", `${header.offsetHeight}px`)).observe(header);
