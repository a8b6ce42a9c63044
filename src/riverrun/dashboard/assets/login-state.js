// On every page: a button to log out where one has logged in, and the way to the login page when that is over.
import { el } from "./dom.js";

const toLogin = () => location.assign(`/login?${new URLSearchParams({ next: location.pathname + location.search })}`);

async function look() {
  const answer = await fetch("/api/login");
  const content = await answer.json();
  if (!content.in) toLogin();
  return content;
}

async function logOut() {
  await fetch("/logout", { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
  location.assign("/login");
}

// A broken stream does not say why it broke.
addEventListener("riverrun-lost", () => look().catch(() => {}));

look().then(({ login, who }) => {
  if (!login) return;
  const title = login === "provider" ? `Log out ${who}` : "Log out";
  document.querySelector(".controls")?.append(el("button", { id: "log-out", class: "button quiet", type: "button", title, onclick: logOut }, "Log out"));
}).catch(() => {});
