// The login page. Who is in already, such as somebody who followed a link from elsewhere, goes straight on.
import { $, setText } from "./dom.js";

const FAILED = {
  state: "That was not the login this page began. Try again.",
  denied: "The provider did not let you in.",
  token: "What the provider said cannot be believed. Tell who runs riverrun.",
  provider: "The provider does not answer as it should. Try again in a while.",
  "not-allowed": "You are known there, but not on the list of those who may look here.",
};

const asked = new URLSearchParams(location.search);

// Where to go on to: a path of this very server, or the first page.
function next() {
  try {
    const found = new URL(asked.get("next") ?? "/", location.origin);
    if (found.origin === location.origin) return found.pathname + found.search + found.hash;
  } catch { /* Not an address at all. */ }
  return "/";
}

// A path may begin with two slashes, and would be another host then.
const goOn = () => location.replace(location.origin + next());

function say(text) {
  setText($("said"), text);
}

async function begin() {
  const answer = await fetch("/api/login");
  const content = await answer.json();
  if (content.in) return goOn();
  if (content.login === "provider") {
    $("provider").href = `/login/oidc?${new URLSearchParams({ next: next() })}`;
    $("provider").hidden = false;
  } else {
    $("form").hidden = false;
    $("password").focus();
  }
  const failed = asked.get("failed");
  if (failed) say(FAILED[failed] ?? "You could not be logged in.");
}

$("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("enter").disabled = true;
  say("");
  try {
    const answer = await fetch("/login", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ password: $("password").value }),
    });
    if (answer.ok) return goOn();
    const content = await answer.json();
    say(`${content.error.message}.`);
    $("password").select();
  } catch {
    say("riverrun does not answer. Try again in a moment.");
  } finally {
    $("enter").disabled = false;
  }
});

begin().catch(() => say("riverrun does not answer. Load this page again in a moment."));
