// The phones and their messages, live. Text is only ever text: what a message says is shown, never run.

const MOST_MESSAGES = 2000;
const MOST_PHONES = 300;
const SILENCE = 25000;
const $ = (id) => document.getElementById(id);
const phones = new Map();
let chosen = "";
let following = true;
let total = 0;

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const hour = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const minute = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long" });

// --- what is known ---

function take(each, fresh) {
  let phone = phones.get(each.to);
  if (!phone) {
    phone = { number: each.to, messages: new Map(), unread: 0, at: 0 };
    phones.set(each.to, phone);
  }
  const known = phone.messages.has(each.id);
  phone.messages.set(each.id, { ...each, fresh: fresh && !known });
  if (known) return false;
  total += 1;
  phone.at = Math.max(phone.at, each.at);
  if (fresh) phone.unread += 1;
  return true;
}

// The oldest go first: a page that is open for days does not grow.
function forget() {
  const oldest = [...phones.values()].sort((a, b) => a.at - b.at);
  while (total > MOST_MESSAGES && oldest.length) {
    const phone = oldest[0];
    const first = phone.messages.keys().next().value;
    phone.messages.delete(first);
    total -= 1;
    if (!phone.messages.size) {
      phones.delete(phone.number);
      oldest.shift();
    }
  }
}

function learn(list, fresh) {
  let newest = null;
  for (const each of list.sort((a, b) => a.id - b.id)) if (take(each, fresh)) newest = each;
  forget();
  if (newest && (following || !chosen)) chosen = newest.to;
  draw();
  if (newest && fresh && newest.to === chosen) ring();
}

// --- what is shown ---

function draw() {
  drawList();
  drawPhone();
  const many = phones.size;
  $("count").textContent = many ? `${many} ${many === 1 ? "phone" : "phones"}, ${total} ${total === 1 ? "message" : "messages"}` : "";
  $("follow").setAttribute("aria-pressed", String(following));
}

function drawList() {
  const wanted = $("search").value.trim().toLowerCase();
  const found = [...phones.values()].filter((phone) => matches(phone, wanted)).sort((a, b) => b.at - a.at).slice(0, MOST_PHONES);
  $("phones").replaceChildren(...found.map(row));
}

function matches(phone, wanted) {
  if (!wanted || phone.number.includes(wanted)) return true;
  for (const each of phone.messages.values()) if (each.text.toLowerCase().includes(wanted)) return true;
  return false;
}

function row(phone) {
  const last = [...phone.messages.values()].at(-1);
  const button = el("button", { class: "owner", type: "button", "data-number": phone.number, "aria-current": String(phone.number === chosen) },
    el("b", {}, phone.number), el("time", {}, minute.format(phone.at)), el("span", { class: "last" }, last ? last.text : ""));
  if (phone.unread && phone.number !== chosen) button.append(el("span", { class: "new" }, String(phone.unread)));
  return el("li", {}, button);
}

function drawPhone() {
  const phone = phones.get(chosen);
  if (!phone) return;
  phone.unread = 0;
  $("number").textContent = phone.number;
  const box = $("messages");
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 60 || box.dataset.number !== chosen;
  const nodes = [];
  let lastDay = "";
  let lastSender = null;
  for (const each of phone.messages.values()) {
    const today = day.format(each.at);
    if (today !== lastDay) {
      nodes.push(el("li", { class: "day" }, today));
      lastSender = null;
    }
    if (each.from !== lastSender) nodes.push(el("li", { class: "sender" }, each.from));
    [lastDay, lastSender] = [today, each.from];
    nodes.push(el("li", { class: each.fresh ? "bubble fresh" : "bubble", "data-state": each.state, dir: "auto" }, each.text));
    nodes.push(el("li", { class: "under" }, under(each)));
    each.fresh = false;
  }
  box.dataset.number = chosen;
  box.replaceChildren(...nodes);
  if (atEnd) box.scrollTop = box.scrollHeight;
}

const STATES = { pending: "on its way", delivered: "delivered", expired: "too late", undeliverable: "not delivered" };

function under(each) {
  const said = [hour.format(each.at), STATES[each.state] ?? each.state];
  if (each.parts > 1) said.push(`${each.parts} parts`);
  if (each.template) said.push(`template ${each.template}`);
  return said.join(" · ");
}

function ring() {
  const phone = document.querySelector(".phone");
  phone.classList.remove("ring");
  void phone.offsetWidth;
  phone.classList.add("ring");
}

// --- the connection ---

let heard = 0;
let source = null;

function connect() {
  source?.close();
  heard = performance.now();
  const made = new EventSource("/live");
  source = made;
  const on = (name, call) => made.addEventListener(name, (event) => {
    if (made !== source) return;
    heard = performance.now();
    state("live", "Live");
    call(JSON.parse(event.data));
  });
  on("hello", (list) => {
    phones.clear();
    total = 0;
    learn(list, false);
  });
  on("news", (list) => learn(list, true));
  on("ping", () => {});
  made.onerror = () => {
    if (made !== source) return;
    made.close();
    source = null;
    state("lost", "Not connected");
    setTimeout(connect, 1000 + Math.random() * 1000);
  };
}

function state(name, words) {
  $("link").dataset.state = name;
  $("link-text").textContent = words;
}

$("phones").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  chosen = button.dataset.number;
  following = false;
  draw();
});
$("follow").addEventListener("click", () => {
  following = true;
  const newest = [...phones.values()].sort((a, b) => b.at - a.at)[0];
  if (newest) chosen = newest.number;
  draw();
});
$("search").addEventListener("input", drawList);
setInterval(() => {
  $("clock").textContent = minute.format(Date.now());
  if (source && performance.now() - heard > SILENCE) source.onerror();
}, 1000);
$("clock").textContent = minute.format(Date.now());
connect();
