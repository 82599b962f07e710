// The stream of events and snapshots, by fetch: EventSource cannot carry a token.

import { denied, headers, refusal, remember } from "/page/access.js";

const RETRY_MS = 2000;
const HIDDEN_MS = 30_000; // a hidden tab lets the device sleep

export class Live {
  /** `on` is called with (kind, data): snapshot, event, daemon, missed; open, lost, unauthorized. */
  constructor(on) {
    this.on = on;
    this.last = "0";
    document.addEventListener("visibilitychange", () => this.#seen());
  }

  async json(path) {
    const answer = await fetch(path, { headers: headers() });
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return answer.json();
  }

  start() {
    this.stop();
    this.#run((this.abort = new AbortController()));
  }

  stop() {
    clearTimeout(this.again);
    this.abort?.abort();
  }

  enter(token) {
    remember(token);
    this.start();
  }

  async #run(abort) {
    let problem = "The API does not answer: it has ended the connection", pause = RETRY_MS;
    try {
      const wanted = headers({ Accept: "text/event-stream", "Last-Event-ID": this.last });
      const answer = await fetch("/v1/events", { headers: wanted, signal: abort.signal });
      if (denied(answer)) {
        this.on("unauthorized", await refusal(answer));
        return;
      }
      if (answer.ok) {
        this.on("open");
        await this.#read(answer.body.pipeThrough(new TextDecoderStream()).getReader());
      } else {
        pause = Math.max(pause, 1000 * (Number(answer.headers.get("Retry-After")) || 0));
        problem = `The API does not let this page in now: ${await refusal(answer)}`;
      }
    } catch (error) {
      problem = `The API does not answer: ${error.message}`;
    }
    if (abort.signal.aborted) return;
    this.on("lost", problem);
    this.again = setTimeout(() => this.start(), pause);
  }

  async #read(reader) {
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (text + value).split("\n\n");
      text = parts.pop();
      parts.forEach((part) => this.#message(part));
    }
  }

  #message(part) {
    const fields = {};
    for (const line of part.split("\n")) {
      const at = line.indexOf(": ");
      if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
    }
    if (fields.id) this.last = fields.id;
    if (!fields.event) return;
    try {
      this.on(fields.event, JSON.parse(fields.data));
    } catch (error) {
      reportError(error); // a fault of the page, not of the connection
    }
  }

  #seen() {
    clearTimeout(this.leaving);
    if (document.hidden) {
      this.leaving = setTimeout(() => this.stop(), HIDDEN_MS);
    } else if (this.abort?.signal.aborted) {
      this.start();
    }
  }
}
