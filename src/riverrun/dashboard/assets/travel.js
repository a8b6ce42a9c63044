// Time travel: pause, go back over what the tables still have, go live again.
import { $, setAttribute, setText } from "./dom.js";
import { clock, day } from "./format.js";

const STEPS = 1000;
// While the slider moves, figures are asked for this often.
const REST = 120;

export class Travel {
  constructor({ range, show, live }) {
    this.told = { range, show, live };
    this.at = null;
    this.timer = 0;
    $("pause").addEventListener("click", () => (this.at === null ? this.pause() : this.goLive()));
    $("go-live").addEventListener("click", () => this.goLive());
    $("back").addEventListener("click", () => this.step(-1));
    $("on").addEventListener("click", () => this.step(1));
    $("moment").addEventListener("input", () => this.to(this.from + ((this.until - this.from) * Number($("moment").value)) / STEPS));
  }

  pause(at = null) {
    const range = this.told.range();
    [this.from, this.until] = range;
    this.at = at ?? this.until;
    $("travel").hidden = false;
    setText($("pause-text"), "Live");
    setAttribute($("pause"), "data-paused", "");
    this.place();
    this.told.show(this.at, at !== null);
  }

  goLive() {
    this.at = null;
    clearTimeout(this.timer);
    $("travel").hidden = true;
    setText($("pause-text"), "Pause");
    setAttribute($("pause"), "data-paused", null);
    this.told.live();
  }

  step(sign) {
    this.to(this.at + (sign * (this.until - this.from)) / 100);
  }

  to(at) {
    this.at = Math.round(Math.min(this.until, Math.max(this.from, at)));
    this.place();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.told.show(this.at, true), REST);
  }

  place() {
    const share = this.until > this.from ? (this.at - this.from) / (this.until - this.from) : 1;
    $("moment").value = String(Math.round(share * STEPS));
    const text = `${day(this.at)} ${clock(this.at)}`;
    setText($("moment-text"), text);
    setAttribute($("moment"), "aria-valuetext", text);
  }
}
