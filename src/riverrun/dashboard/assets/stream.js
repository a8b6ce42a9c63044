// The live connection: server-sent events, opened again by itself when it breaks.

const FIRST_WAIT = 500;
const MOST_WAIT = 5000;
// The server says something every ten seconds; after this long without a word the connection is dead.
const SILENCE = 25000;

export class Stream {
  constructor({ hello, frame, state }) {
    this.told = { hello, frame, state };
    this.source = null;
    this.wait = FIRST_WAIT;
    this.timer = 0;
    this.heard = 0;
    this.url = "";
    setInterval(() => {
      if (this.source && this.heard && performance.now() - this.heard > SILENCE) this.lost();
    }, 2000);
  }

  open(url) {
    this.close();
    this.url = url;
    this.connect();
  }

  connect() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.heard = performance.now();
    const source = new EventSource(this.url);
    this.source = source;
    const on = (name, call) => source.addEventListener(name, (event) => {
      if (source !== this.source) return;
      this.heard = performance.now();
      call(JSON.parse(event.data));
    });
    on("hello", (content) => {
      this.wait = FIRST_WAIT;
      this.told.state("live");
      this.told.hello(content);
    });
    on("frame", (content) => this.told.frame(content));
    on("ping", (content) => this.told.frame(content));
    // The browser would try again as well, but gives up for good on some answers, and does not tell when it tries.
    source.onerror = () => source === this.source && this.lost();
  }

  lost() {
    this.source?.close();
    this.source = null;
    const wait = this.wait * (0.75 + Math.random() / 2);
    this.wait = Math.min(MOST_WAIT, this.wait * 2);
    dispatchEvent(new Event("riverrun-lost"));
    this.told.state("lost", Date.now() + wait);
    this.timer = setTimeout(() => this.connect(), wait);
  }

  close() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.source?.close();
    this.source = null;
    this.wait = FIRST_WAIT;
  }
}
