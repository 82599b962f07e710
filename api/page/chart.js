// A chart of the last minutes, as SVG: lines over time, zero at the bottom.  The pointer reads a
// value, and so do the arrow keys, Home and End while the chart has the focus; Escape ends that.

import { draw, speak } from "/page/figures.js";

export const SPAN_S = 300;
const LEAST_S = 60; // a page that was just opened begins with this much
const HOLE_S = 5; // samples further apart than this are not joined
const TOP = 14, BOTTOM = 16;

export class Chart {
  /** `series`: [{key, name, kind: "first"|"other"}], the first is filled; `format`: value → text. */
  constructor(figure, series, format) {
    Object.assign(this, { figure, series, format, samples: [], promise: null, at: null, read: null });
    this.title = figure.closest("article").querySelector("h2").firstChild.textContent.trim();
    figure.tabIndex = 0;
    figure.setAttribute("role", "img");
    new ResizeObserver(() => this.#draw()).observe(figure);
    figure.addEventListener("pointermove", (event) => {
      this.at = event.clientX - figure.getBoundingClientRect().left;
      this.#draw();
    });
    figure.addEventListener("pointerleave", () => {
      this.at = null;
      this.#draw();
    });
    figure.addEventListener("keydown", (event) => this.#key(event));
    figure.addEventListener("blur", () => this.#choose(null));
  }

  /** Show samples [{t, key: value…}], oldest first, t in seconds; `promise` is a line across. */
  show(samples, promise = null) {
    Object.assign(this, { samples, promise });
    this.#draw();
    if (this.figure !== document.activeElement) this.figure.setAttribute("aria-label", this.#summary());
  }

  /** The samples that are shown. */
  #seen() {
    const last = this.samples.at(-1)?.t;
    return this.samples.filter((sample) => sample.t >= last - SPAN_S);
  }

  /** The chart as a text: of each series the last value and the range. */
  #summary() {
    const seen = this.#seen();
    const told = this.series.map(({ key, name }) => {
      const values = seen.map((sample) => sample[key]).filter(Number.isFinite);
      if (!values.length) return `${name} no values`.trim();
      const [last, least, most] = [values.at(-1), Math.min(...values), Math.max(...values)].map(this.format);
      return `${name} last ${last}, from ${least} to ${most}`.trim();
    });
    const promise = this.promise ? `; promise ${this.format(this.promise)}` : "";
    return `${this.title}, chart of the last ${SPAN_S / 60} minutes: ${told.join("; ")}${promise}`;
  }

  #key(event) {
    const seen = this.#seen(), end = seen.length - 1;
    const at = seen.findIndex(({ t }) => t === this.read);
    const to = { ArrowLeft: at < 0 ? end : at - 1, ArrowRight: at < 0 ? end : at + 1, Home: 0, End: end, Escape: null }[event.key];
    if (to === undefined || !seen.length) return;
    event.preventDefault();
    this.#choose(to === null ? null : seen[Math.min(end, Math.max(0, to))]);
  }

  /** Show and speak what was at a sample; null ends it. */
  #choose(sample) {
    this.read = sample?.t ?? null;
    this.#draw();
    if (sample) speak(this.#told(sample));
  }

  #told(sample) {
    const told = this.series.map(({ key, name }) => `${name} ${this.format(sample[key])}`.trim());
    return [new Date(sample.t * 1000).toLocaleTimeString("en-GB"), ...told].join("  ");
  }

  #draw() {
    const width = this.figure.clientWidth, height = this.figure.clientHeight - 8;
    if (!width || !this.samples.length) return;
    const last = this.samples.at(-1).t;
    const span = Math.min(SPAN_S, Math.max(LEAST_S, last - this.samples[0].t));
    const seen = this.samples.filter((sample) => sample.t >= last - span);
    const values = seen.flatMap((s) => this.series.map(({ key }) => s[key])).filter(Number.isFinite);
    const top = nice(Math.max(...values, this.promise ?? 0, 0));
    const x = (t) => width - ((last - t) / span) * width;
    const y = (v) => height - BOTTOM - (v / top) * (height - TOP - BOTTOM);
    const svg = draw("svg", { width, height, "aria-hidden": "true" }, ...this.#grid(width, top, y, span));
    if (this.promise) svg.append(draw("line", { class: "promise", x1: 0, x2: width, y1: y(this.promise), y2: y(this.promise) }));
    for (const { key, kind } of [...this.series].reverse()) svg.append(...lines(seen, key, kind, x, y));
    const near = this.#near(seen, x);
    if (near) svg.append(...this.#reading(near, x, width, height));
    this.figure.replaceChildren(svg);
  }

  #grid(width, top, y, span) {
    const drawn = [0, 0.5, 1].map((share) =>
      draw("line", { class: "grid", x1: 0, x2: width, y1: y(top * share), y2: y(top * share) }));
    const label = (x, at, text, anchor) => draw("text", { x, y: at, "text-anchor": anchor }, text);
    const ago = span >= 120 ? `−${Math.round(span / 60)} min` : `−${Math.round(span)} s`;
    if (this.at === null && this.read === null) drawn.push(label(0, y(top) - 4, round(this.format(top)), "start"));
    return [...drawn, label(0, y(0) + 13, ago, "start"), label(width, y(0) + 13, "now", "end")];
  }

  /** The sample to read: at the pointer, else where the keys are. */
  #near(seen, x) {
    if (this.at === null) return seen.find(({ t }) => t === this.read);
    return seen.reduce((a, b) => (Math.abs(x(b.t) - this.at) < Math.abs(x(a.t) - this.at) ? b : a));
  }

  #reading(near, x, width, height) {
    const right = x(near.t) > width / 2;
    return [
      draw("line", { class: "cross", x1: x(near.t), x2: x(near.t), y1: TOP, y2: height - BOTTOM }),
      draw("text", { class: "read", x: right ? width : 0, y: TOP - 4, "text-anchor": right ? "end" : "start" }, this.#told(near)),
    ];
  }
}

/** Lines of one series, broken where samples are missing; the first is filled down to zero. */
function lines(samples, key, kind, x, y) {
  const runs = [];
  let before = null;
  for (const sample of samples) {
    if (!Number.isFinite(sample[key])) continue;
    if (before === null || sample.t - before > HOLE_S) runs.push([]);
    runs.at(-1).push(sample);
    before = sample.t;
  }
  return runs.flatMap((run) => {
    const path = run.map((s) => `${x(s.t).toFixed(1)},${y(s[key]).toFixed(1)}`).join("L");
    const line = draw("path", { class: kind, d: `M${path}` });
    if (kind !== "first") return [line];
    const floor = y(0).toFixed(1);
    const d = `M${x(run[0].t).toFixed(1)},${floor}L${path}L${x(run.at(-1).t).toFixed(1)},${floor}Z`;
    return [draw("path", { class: "area", d }), line];
  });
}

/** An axis needs no zeros behind the point. */
const round = (text) => text.replace(/(\.\d*?)0+(?!\d)/, "$1").replace(/\.(?!\d)/, "");

/** The next round number that leaves some room. */
function nice(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12].map((step) => step * power).find((step) => step >= value * 1.04);
}
