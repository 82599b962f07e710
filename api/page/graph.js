// A job as a graph: laid out from its document, with what each part does now.

import { amount, draw, make, say, speak } from "/page/figures.js";

const GAP = 14, WIDEST = 216, LEAST = 150, LINK = 28;
const TOP = 20, LINE = 17, BELOW = 8, SIDE = 12; // of the texts in a box
const pen = document.createElement("canvas").getContext("2d");

/**
 * Draw `job`'s document into `place`; `figures(part, id)` gives a node's line and whether it flows.
 * `texts` is a list for screen readers: what each node is, what feeds it, and its line.
 */
export function graph(place, texts, job, figures) {
  const width = place.clientWidth;
  if (!width) return;
  const { nodes, edges } = read(job);
  const layers = layered(nodes, edges);
  const across = width / layers.length >= LEAST + LINK;
  const family = getComputedStyle(place).fontFamily;
  for (const node of nodes.values()) {
    [node.amounts, node.flows] = figures(node.part, node.id);
    node.said = [node.id, about(node.kind, node.told), node.amounts];
  }
  const fill = (node, wide) => {
    const fonts = [`600 13px ${family}`, `12px ${family}`, `12px ${family}`];
    const lines = node.said.flatMap((text, at) => (text ? wrapped(text, wide - 2 * SIDE, fonts[at]) : []).map((line) => [at, line]));
    Object.assign(node, { wide, lines, high: TOP + LINE * (Math.max(3, lines.length) - 1) + BELOW });
  };
  const height = across ? beside(layers, width, fill) : below(layers, width, fill);
  const svg = draw("svg", { width, height, "aria-hidden": "true" });
  svg.append(...edges.map((edge) => link(edge, across)), ...[...nodes.values()].map(box));
  svg.querySelectorAll(".node")[place.dataset.chosen]?.classList.add("chosen");
  place.replaceChildren(svg);
  tell(texts, [...nodes.values()]);
}

/** Arrow keys choose a node of the focused graph and speak its text. */
export function stepping(place, texts) {
  place.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const nodes = place.querySelectorAll(".node");
    if (!step || !nodes.length) return;
    event.preventDefault();
    const chosen = (Number(place.dataset.chosen ?? (step > 0 ? -1 : 0)) + step + nodes.length) % nodes.length;
    place.dataset.chosen = chosen;
    nodes.forEach((node, at) => node.classList.toggle("chosen", at === chosen));
    speak(texts.children[chosen].textContent);
  });
  place.addEventListener("blur", () => {
    delete place.dataset.chosen;
    place.querySelector(".chosen")?.classList.remove("chosen");
  });
}

/** The nodes as texts; an entry changes only with its text, so that a reader keeps its place. */
function tell(texts, nodes) {
  while (texts.children.length > nodes.length) texts.lastChild.remove();
  nodes.forEach(({ kind, said, inputs }, at) => {
    const from = inputs.length ? `from ${inputs.map(({ id }) => id).join(", ")}` : "";
    const entry = texts.children[at] ?? texts.appendChild(make("li"));
    say(entry, [`${kind} ${said[0]}`, from, said[1], said[2]].filter(Boolean).join("; "));
  });
}

/** Nodes by name, and edges between them.  `a.late` is a link out of a that carries late rows. */
function read(job) {
  const nodes = new Map(), edges = [];
  for (const [part, many] of [["streams", "stream"], ["operators", "operator"], ["sinks", "sink"]]) {
    for (const [id, told] of Object.entries(job[part] ?? {})) {
      nodes.set(`${many}:${id}`, { part, kind: many, id, told, inputs: [], depth: 0 });
    }
  }
  for (const node of nodes.values()) {
    const { input, left, right, inputs = [] } = node.told;
    for (const name of [input, left, right, ...inputs].filter((one) => typeof one === "string")) {
      const base = name.split(".")[0];
      const from = nodes.get(`operator:${base}`) ?? nodes.get(`stream:${base}`);
      if (!from || node.kind === "stream") continue;
      node.inputs.push(from);
      edges.push({ from, to: node, dead: name !== base });
    }
  }
  return { nodes, edges };
}

/** Nodes by their distance from the streams, each layer in the order of what feeds it. */
function layered(nodes, edges) {
  for (let round = 0; round < nodes.size; round++) {
    for (const { from, to } of edges) to.depth = Math.min(nodes.size, Math.max(to.depth, from.depth + 1));
  }
  const layers = [];
  for (const node of nodes.values()) (layers[node.depth] ??= []).push(node);
  const kept = layers.filter(Boolean);
  kept.forEach((layer, depth) => {
    const rank = (node) => node.inputs.reduce((sum, from) => sum + from.order, 0) / node.inputs.length;
    if (depth) layer.sort((a, b) => rank(a) - rank(b));
    layer.forEach((node, at) => (node.order = (at + 0.5) / layer.length));
  });
  return kept;
}

/** From left to right; returns the height.  `fill(node, wide)` breaks a node's texts into lines. */
function beside(layers, width, fill) {
  const column = width / layers.length;
  const wide = Math.min(WIDEST, column - LINK - 8);
  const step = layers.length > 1 ? (width - wide) / (layers.length - 1) : 0;
  layers.flat().forEach((node) => fill(node, wide));
  const filled = layers.map((layer) => layer.reduce((sum, { high }) => sum + high, 0));
  const height = Math.max(...layers.map((layer, depth) => filled[depth] + GAP * (layer.length - 1)));
  layers.forEach((layer, depth) => {
    const free = (height - filled[depth]) / layer.length;
    let top = free / 2;
    for (const node of layer) {
      Object.assign(node, { x: Math.min(depth * step, width - wide - 1) + 0.5, y: top + 0.5 });
      top += node.high + free;
    }
  });
  return height + 2;
}

/** From top to bottom, where it is narrow; returns the height. */
function below(layers, width, fill) {
  let top = 0.5;
  for (const layer of layers) {
    const columns = Math.min(layer.length, Math.max(1, Math.floor((width + GAP) / (LEAST + GAP))));
    const wide = Math.min(WIDEST * 1.3, (width - 1 - GAP * (columns - 1)) / columns);
    const left = (width - columns * wide - GAP * (columns - 1)) / 2;
    layer.forEach((node) => fill(node, wide));
    for (let first = 0; first < layer.length; first += columns) {
      const row = layer.slice(first, first + columns);
      row.forEach((node, column) => Object.assign(node, { x: left + column * (wide + GAP), y: top }));
      top += Math.max(...row.map(({ high }) => high)) + GAP;
    }
    top += LINK - GAP;
  }
  return top - LINK + 2;
}

function box({ kind, x, y, wide, high, said, lines }) {
  const group = draw("g", { class: `node ${kind}`, transform: `translate(${x},${y})` });
  group.append(
    draw("rect", { width: wide, height: high, rx: 8 }),
    draw("title", {}, said.join("\n")),
    ...lines.map(([part, text], at) => draw("text", { class: ["name", "", "amount"][part], x: SIDE, y: TOP + at * LINE }, text)),
  );
  return group;
}

/** A text in lines that fit into `room` pixels, broken between words where it can be. */
function wrapped(text, room, font) {
  pen.font = font;
  const fits = (line) => pen.measureText(line).width <= room;
  const lines = [""];
  for (const word of text.split(/(?<=[ ,_(])/)) {
    if (!fits(lines.at(-1) + word.trimEnd()) && lines.at(-1)) lines.push("");
    for (const letter of fits(word.trimEnd()) ? [word] : word) {
      if (!fits(lines.at(-1) + letter.trimEnd())) lines.push("");
      lines[lines.length - 1] += letter;
    }
  }
  return lines;
}

function link({ from, to, dead }, across) {
  const [x1, y1, x2, y2] = across
    ? [from.x + from.wide, from.y + from.high / 2, to.x, to.y + to.high / 2]
    : [from.x + from.wide / 2, from.y + from.high, to.x + to.wide / 2, to.y];
  const d = across
    ? `M${x1},${y1}C${(x1 + x2) / 2},${y1} ${(x1 + x2) / 2},${y2} ${x2},${y2}`
    : `M${x1},${y1}C${x1},${(y1 + y2) / 2} ${x2},${(y1 + y2) / 2} ${x2},${y2}`;
  return draw("path", { class: `edge${dead ? " dead" : from.flows ? " busy" : ""}`, d });
}

/** What a part is, in the words of its document. */
function about(kind, told) {
  if (kind === "stream") return `${told.source?.type ?? ""} stream`;
  const on = Array.isArray(told.on) ? told.on.join(", ") : Object.keys(told.on ?? {}).join(", ");
  const said = {
    filter: told.where,
    interval_join: `join on ${on}`,
    window: `window ${told.size ?? ""}`,
    map: `map to ${Object.keys(told.columns ?? {}).join(", ")}`,
    pages: "pages to the centre",
    file: `${told.format ?? "parquet"} files`,
  };
  return String(said[told.type] ?? told.type);
}

/** A node's amounts: [text, whether something flows].  `rate(key)` is a counter's per second. */
export function amounts(part, told, rate) {
  if (!told) return ["", false];
  const per = (key) => `${amount(rate(key))}/s`;
  if (part === "streams") {
    const waits = told.ended ? "ended" : told.late ? `${amount(told.late)} late` : `${told.producers} ${told.producers === 1 ? "producer" : "producers"}`;
    return [`${per("rows")}, ${waits}`, rate("rows") > 0];
  }
  if (part === "sinks") {
    const pages = "pages" in told ? `, ${amount(told.pages)} pages` : "";
    return [`${per("rows")}${pages}`, rate("rows") > 0];
  }
  if (told.rows_in_error) return [`${amount(told.rows_in_error)} rows in error`, true];
  if ("matches" in told) return [`${per("matches")}, ${told.kernel}`, rate("matches") > 0];
  if ("groups" in told) return [`${per("groups_emitted")} out, ${amount(told.groups)} open`, true];
  return [told.state_bytes ? amount(told.state_bytes, "B") : "", true];
}
