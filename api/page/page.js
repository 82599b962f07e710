// The status page: what the stream tells, as figures, charts and graphs.

import { token } from "/page/access.js";
import { Chart, SPAN_S } from "/page/chart.js";
import { amount, byId, clock, count, digits, draw, duration, make, mark, say, speak } from "/page/figures.js";
import { amounts, graph, stepping } from "/page/graph.js";
import { Live } from "/page/live.js";

const STALE_MS = 5000; // a snapshot comes every second
const RATE_S = 5; // rates are over this long
const COST_S = 30; // joules per million tuples, in the chart, too
const EVENTS = 100;
const LEDGER_ROWS = 7;

let history = []; // what the charts show: {t, watts, joules, …}
let recent = []; // snapshots of the last RATE_S
let jobs = new Map(); // documents, by name
let told = 0; // performance.now() of the newest snapshot
let daemon = true, problem = "", reloading = false, lastSpoken = "";
const live = new Live(hear);

const charts = {
  power: new Chart(figure("power"), [{ key: "watts", name: "", kind: "first" }], (v) => `${digits(v)} W`),
  cost: new Chart(figure("cost"), [{ key: "cost", name: "in all", kind: "first" }], (v) => amount(v, "J")),
  rate: new Chart(figure("rate"), [
    { key: "rowsIn", name: "in", kind: "first" }, { key: "rowsOut", name: "out", kind: "other" },
  ], (v) => `${amount(v)}/s`),
  latency: new Chart(figure("latency"), [
    { key: "p50", name: "median", kind: "first" }, { key: "p99", name: "p99", kind: "other" },
  ], (v) => `${digits(v)} ms`),
  backlog: new Chart(figure("backlog"), [{ key: "backlog", name: "", kind: "first" }], (v) => amount(v, "B")),
};

function figure(id) {
  return byId(id).querySelector("figure");
}

/** Put figures (in order) and a note into a panel. */
function panel(id, figures, note, warning = false) {
  const element = byId(id);
  element.querySelectorAll(".figure b").forEach((b, at) => say(b, figures[at]));
  const place = element.querySelector(".note");
  say(place, note);
  place.classList.toggle("warning", warning);
}

function hear(kind, data) {
  if (kind === "snapshot") snapshot(data);
  else if (kind === "event") event(data);
  else if (kind === "daemon") daemon = data.up;
  else if (kind === "open") [problem, byId("ask").hidden] = ["", true];
  else if (kind === "lost") problem = data;
  else if (kind === "unauthorized") {
    byId("ask").hidden = false;
    problem = token() ? data : "";
  }
  state();
}

/** Live, or since when not. */
function state() {
  const asks = !byId("ask").hidden;
  const quiet = told ? performance.now() - told : Infinity;
  const stale = told > 0 && (quiet > STALE_MS || !daemon);
  document.body.className = stale || (problem && !asks) ? "stale" : told ? "live" : "";
  document.querySelector("main").hidden = asks && !told;
  const spoken = stale ? "The figures are not current" : told ? "live" : "";
  if (spoken !== lastSpoken) speak((lastSpoken = spoken));
  say(byId("pulse").querySelector("span"), stale ? `${duration(quiet / 1000)} old` : told ? "live" : asks ? "token needed" : "connecting");
  const newest = recent.at(-1);
  const since = newest ? ` What is shown is as of ${clock(newest.wall_us)}.` : "";
  const notice = byId("notice");
  notice.hidden = !stale && !problem && daemon;
  if (!daemon) say(notice, `The daemon does not answer.${since}`);
  else if (problem) say(notice, asks ? `Not let in: ${problem}` : `${problem}.${since}`);
  else if (stale) say(notice, `Nothing comes any more.${since}`); // read out once: no counting seconds
}

function snapshot(now) {
  const before = recent.at(-1);
  if (!before || before.pid !== now.pid || before.session !== now.session) {
    restore(now);
    recent = [];
  }
  recent.push(now);
  while (recent.length > 2 && now.wall_us - recent[1].wall_us > RATE_S * 1e6) recent.shift();
  [told, daemon, problem] = [performance.now(), true, ""];
  const sample = take(now);
  history.push(sample);
  while (history.length > 2 && sample.t - history[0].t > SPAN_S + COST_S) history.shift();
  const changed = Object.entries(now.jobs).some(([name, job]) => {
    const known = jobs.get(name); // versions restart for a job with the name of a deleted one
    return known?.version !== job.version || known.created_us !== job.created_us;
  });
  if (changed || jobs.size !== Object.keys(now.jobs).length) definitions();
  show(now, sample);
}

/** A counter's rate per second: `read` finds it in a snapshot. */
function rate(read) {
  const first = recent[0], last = recent.at(-1);
  const seconds = (last.wall_us - first.wall_us) / 1e6;
  const [a, b] = [read(first), read(last)];
  return seconds > 0 && a != null && b != null && b >= a ? (b - a) / seconds : null;
}

const sum = (object, read) => Object.values(object).reduce((all, one) => all + read(one), 0);

/** What the charts keep of a snapshot. */
function take(now) {
  const { energy } = now;
  const sample = {
    t: now.wall_us / 1e6,
    watts: energy?.watts?.input,
    joules: energy?.input?.joules,
    rows: now.rows,
    rowsIn: rate((s) => s.rows),
    rowsOut: rate((s) => sum(s.jobs, (job) => sum(job.sinks, (sink) => sink.rows ?? 0))),
    p50: now.latency_ms_p50,
    p99: now.latency_ms_p99,
    backlog: now.store.backlog_bytes,
  };
  for (const [name, limits] of Object.entries(energy?.limits ?? {})) {
    sample[`hz ${name}`] = limits.hz == null ? undefined : limits.hz / 1e6;
  }
  const first = history.find((one) => sample.t - one.t <= COST_S);
  const tuples = first ? sample.rows - first.rows : 0;
  sample.cost = tuples > 0 && sample.joules != null && first.joules != null ? (1e6 * (sample.joules - first.joules)) / tuples : undefined;
  return sample;
}

function show(now, sample) {
  head(now);
  power(now);
  panel("rate", [amount(sample.rowsIn), amount(sample.rowsOut)], ...inputs(now));
  charts.rate.show(history);
  const promises = Object.values(now.jobs)
    .filter((job) => job.state !== "paused")
    .map((job) => job.promises.latency_us / 1000);
  const promise = promises.length ? Math.min(...promises) : null;
  say(byId("latency").querySelector(".host"), now.energy?.board.simulated ? "of this host" : "");
  panel("latency", [digits(sample.p50), digits(sample.p99)], [now.promise_missed && "late: the promise is missed", legs(promise)].filter(Boolean).join("; "), now.promise_missed);
  charts.latency.show(history, promise);
  panel("backlog", [count(now.store.backlog_pages)], ...backlog(now));
  charts.backlog.show(history);
  for (const name of Object.keys(now.jobs)) job(name, now.jobs[name]);
  energy(now.energy);
}

function head(now) {
  const { energy, build } = now;
  document.title = `${now.device} – edged`;
  say(byId("device"), now.device);
  const board = energy ? `${energy.board.name}${energy.board.simulated ? " (simulated)" : ""}` : "no board watched";
  const words = [board, now.state, `up ${duration(now.uptime_s)}`];
  if (now.restarts) words.push(`${now.restarts} ${now.restarts === 1 ? "restart" : "restarts"}`);
  say(byId("about"), words.join(" · "));
  say(byId("build"), `edged ${build.version}, Python ${build.python}, ${build.platform}, ${now.workers} kernel ${now.workers === 1 ? "thread" : "threads"}, ${amount(now.process.rss_bytes, "B")} resident, ${digits(100 * rate((s) => s.process.cpu_s))} % of a core`);
}

const UNKNOWN = "Not known: no meter of the input, and no power model of this machine.";

function power(now) {
  const { energy } = now;
  document.querySelectorAll("#power .tag").forEach((tag) => mark(tag, energy?.watts?.provenance));
  document.querySelectorAll("#cost .tag").forEach((tag) => mark(tag, energy?.joules_per_mtuple?.provenance));
  const none = "No board is watched: set energy.board.";
  const pair = energy?.joules_per_mtuple;
  panel("power", [digits(energy?.watts?.input)], energy ? [energy.watts?.rail, energy.input?.covers].filter(Boolean).join(", ") || UNKNOWN : none);
  const policy = energy?.policy;
  panel("cost", [digits(pair?.above_idle), digits(pair?.input)],
    energy ? `policy ${policy.policy}${policy.problem ? `: ${policy.problem}` : ""}; since start, chart over ${COST_S} s` : none, !!policy?.problem);
  charts.power.show(history);
  charts.cost.show(history);
  clocks(energy, none);
}

function clocks(energy, none) {
  const domains = Object.entries(energy?.limits ?? {}).filter(([, limits]) => limits.hz);
  const main = domains.find(([name]) => name.startsWith("cpu")) ?? domains[0];
  const each = domains.map(([name, limits]) => `${name} ${digits(limits.hz / 1e6)}`).join(", ");
  const [idle] = Object.entries(energy?.idle_states ?? {}).sort(([, a], [, b]) => b - a);
  const sleep = idle ? `; ${digits(100 * idle[1])} % in ${idle[0]}, ${digits(energy.wakeups_per_s)} wakeups/s` : "";
  mark(byId("clocks").querySelector(".tag"), energy?.board.simulated ? "simulated" : null);
  panel("clocks", [main ? digits(main[1].hz / 1e6) : "–"], energy ? races(energy) + each + sleep + heat(energy) : none);
  charts.clocks ??= domains.length && new Chart(figure("clocks"), domains.map(([name]) => (
    { key: `hz ${name}`, name, kind: name === main[0] ? "first" : "other" })), (v) => `${digits(v)} MHz`);
  if (charts.clocks) charts.clocks.show(history);
}

/** The highest temperature, and what throttles now. */
function heat({ temperatures, throttling }) {
  const [top] = temperatures.filter((zone) => zone.celsius != null).sort((a, b) => b.celsius - a.celsius);
  const causes = throttling.filter((one) => one.now).map((one) => one.cause);
  return (top ? `; ${top.zone} ${digits(top.celsius)} °C` : "") + (causes.length ? `; throttled: ${causes.join(", ")}` : "");
}

/** The clock that most of the last seconds' races ran at. */
function races({ race_clock_s }) {
  const spent = Object.keys(race_clock_s).map((hz) => [hz, rate((s) => s.energy?.race_clock_s[hz] ?? 0)]);
  const [most] = spent.filter(([, share]) => share > 0).sort(([, a], [, b]) => b - a);
  return most ? `races at ${digits(most[0] / 1e6)}; ` : "";
}

/** What comes in, and what was not processed. */
function inputs(now) {
  const dropped = sum(now.drops, (rows) => rows);
  const connected = now.sources.reduce((all, source) => all + source.connected, 0);
  const bytes = rate((s) => s.sources.reduce((all, source) => all + (source.bytes ?? 0), 0));
  const words = [`${connected} connected, ${amount(bytes, "B")}/s in`];
  if (rate((s) => s.sources.reduce((all, source) => all + source.backpressure_us, 0)) > 0) words.push("senders wait");
  if (now.saturated) words.push("saturated: input arrives faster than it is processed");
  if (dropped) words.push(`${count(dropped)} rows dropped`);
  return [words.join(", "), dropped > 0 || now.saturated];
}

/** Where the time goes: the mean of each leg over the last seconds. */
function legs(promise) {
  const names = { arrival_to_race: "waits", race: "race", seal: "seal", commit: "commit" };
  const means = Object.entries(names).map(([leg, name]) => {
    const mean = rate((s) => s.legs[leg].sum_us) / rate((s) => s.legs[leg].count) / 1000;
    return Number.isFinite(mean) ? `${name} ${digits(mean)}` : "";
  });
  const said = means.filter(Boolean).join(", ");
  return [promise && `promise ${promised(promise * 1000)}`, said && `${said} ms`].filter(Boolean).join("; ");
}

function backlog(now) {
  const { store, uplink, wall_us } = now;
  const words = [amount(store.backlog_bytes, "B")];
  if (store.oldest_page_us) words.push(`oldest ${duration((wall_us - store.oldest_page_us) / 1e6)}`);
  if (!uplink) words.push("no uplink: pages stay here");
  else if (uplink.connected) words.push("uplink sends");
  else words.push(`uplink ${uplink.state}${uplink.problem ? `: ${uplink.problem}` : ""}`);
  if (store.full) words.push("the store is full: senders wait");
  return [words.join(", "), store.full || (uplink && !uplink.connected)];
}

function job(name, now) {
  let card = document.getElementById(`job ${name}`);
  if (!card) {
    card = make("article", "job", make("header", "", make("h2", "", name), make("p", "note")), make("div", "graph"), make("ul", "unseen"));
    card.id = `job ${name}`;
    const [place, texts] = [card.querySelector(".graph"), card.querySelector("ul")];
    place.tabIndex = 0;
    for (const [part, role] of [[place, "group"], [texts, "list"]]) {
      part.setAttribute("role", role);
      part.setAttribute("aria-label", `Graph of ${name}`);
    }
    stepping(place, texts);
    byId("jobs").append(card);
  }
  const { promises } = now;
  const words = [now.ended ? "ended" : now.state, `version ${now.version}`,
    `results within ${promised(promises.latency_us)}`, promises.durability.replaceAll("_", " ")];
  const note = card.querySelector(".note");
  say(note, now.problem ? `${now.state}: ${now.problem}` : words.join(" · "));
  note.classList.toggle("warning", now.state !== "running");
  const document_ = jobs.get(name)?.document;
  if (!document_) return;
  graph(card.querySelector(".graph"), card.querySelector("ul"), document_, (part, id) =>
    amounts(part, now[part][id], (key) => rate((s) => s.jobs[name]?.[part][id]?.[key]) ?? 0));
}

const promised = (us) => (us < 1e6 ? amount(us / 1000, "ms") : amount(us / 1e6, "s"));

function energy(energy_) {
  byId("energy").hidden = byId("meters").hidden = !energy_;
  if (!energy_) return;
  const { ledger, rails } = energy_;
  mark(byId("energy").querySelector(".tag"), ledger?.provenance);
  byId("ledger").replaceChildren(...(ledger ? bars(ledger) : [make("p", "note", "nothing was told yet")]));
  byId("rails").replaceChildren(...rails.map((rail) => {
    const tag = make("span");
    mark(tag, rail.provenance);
    const name = make("td", rail.part_of ? "part" : "", rail.rail, tag);
    return make("tr", "", name, make("td", "", `${digits(rail.watts)} W`), make("td", "", amount(rail.joules, "J")));
  }));
  say(byId("missing"), energy_.missing.join("; "));
}

/** The ledger's entries as bars, most first; the idle board as the first, in grey. */
function bars(ledger) {
  const rows = ledger.entries.map((entry) => {
    const whose = [entry.operator, entry.job && `(${entry.job})`].filter(Boolean).join(" ");
    return [[entry.phase, whose].filter(Boolean).join(" "), entry.above_idle];
  });
  rows.sort(([, a], [, b]) => b.joules - a.joules);
  const most = Math.max(ledger.baseline.joules, ...rows.map(([, one]) => one.joules));
  const bar = (name, { joules, error_j }, kind) => {
    const svg = draw("svg", { width: "100%", height: 4, "aria-hidden": "true" },
      draw("rect", { width: "100%", height: 4, rx: 2 }),
      draw("rect", { width: `${Math.max(0, (100 * joules) / most)}%`, height: 4, rx: 2 }));
    const value = make("span", "", amount(joules, "J"), " ", make("small", "", `± ${amount(error_j, "J")}`));
    return make("div", `bar ${kind}`, make("span", "", name), value, svg);
  };
  return [bar("the idle board", ledger.baseline, "floor"),
    ...rows.slice(0, LEDGER_ROWS).map(([name, figure]) => bar(name, figure, ""))];
}

/** Read the jobs' documents; they change seldom. */
async function definitions() {
  if (reloading) return;
  reloading = true;
  try {
    const found = [];
    for (let path = "/v1/jobs", next = ""; next !== null;) {
      const page = await live.json(next ? `${path}?cursor=${encodeURIComponent(next)}` : path);
      found.push(...page.items);
      next = page.next;
    }
    jobs = new Map(found.map((one) => [one.name, one]));
    for (const card of document.querySelectorAll(".job")) {
      if (!jobs.has(card.id.slice(4))) card.remove();
    }
  } catch {
    // the next snapshot asks again
  } finally {
    reloading = false;
  }
}

function event({ id, at_us, kind, level, text, job }) {
  const list = byId("events").querySelector("ol");
  if (Number(list.firstChild?.dataset.id) >= id) return;
  const whose = job && !text.startsWith(`job ${job}`) ? `${job}: ` : "";
  const time = make("time", "", clock(at_us));
  time.dateTime = new Date(at_us / 1000).toISOString();
  const row = make("li", level, time, make("p", "", make("code", "", kind), ` ${whose}${text}`));
  row.dataset.id = id;
  list.prepend(row);
  while (list.children.length > EVENTS) list.lastChild.remove();
}

/** What an earlier visit of this tab saw, of the same process. */
function restore({ epoch, session }) {
  const kept = JSON.parse(sessionStorage.getItem("edged.history") ?? "null");
  history = kept?.of === `${epoch}/${session}` ? kept.history : [];
}

addEventListener("pagehide", () => {
  const newest = recent.at(-1);
  if (newest) sessionStorage.setItem("edged.history", JSON.stringify({ of: `${newest.epoch}/${newest.session}`, history }));
});
byId("ask").addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  live.enter(byId("token").value.trim());
});
setInterval(state, 1000);
live.start();
