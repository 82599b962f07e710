// A job as a graph: laid out from its document, with what each part does now.

import { amount, draw } from "/page/figures.js";

const HEIGHT = 62, GAP = 14, WIDEST = 216, LEAST = 132, LINK = 28;

/** Draw `job`'s document into `place`; `figures(part, id)` gives a node's line and whether it flows. */
export function graph(place, job, figures) {
  const width = place.clientWidth;
  if (!width) return;
  const { nodes, edges } = read(job);
  const layers = layered(nodes, edges);
  const across = width / layers.length >= LEAST + LINK;
  const height = across ? beside(layers, width) : below(layers, width);
  const busy = new Map();
  const drawn = [...nodes.values()].map((node) => {
    const [text, flows] = figures(node.part, node.id);
    busy.set(node, flows);
    return box(node, text);
  });
  const links = edges.map((edge) => link(edge, across, busy.get(edge.from)));
  const svg = draw("svg", { width, height, role: "img", "aria-label": `Graph of ${job.name}` });
  svg.append(...links, ...drawn);
  place.replaceChildren(svg);
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

/** From left to right; returns the height. */
function beside(layers, width) {
  const column = width / layers.length;
  const wide = Math.min(WIDEST, column - LINK - 8);
  const step = layers.length > 1 ? (width - wide) / (layers.length - 1) : 0;
  const most = Math.max(...layers.map((layer) => layer.length));
  const height = most * (HEIGHT + GAP) - GAP;
  layers.forEach((layer, depth) => {
    const room = height / layer.length;
    layer.forEach((node, at) =>
      Object.assign(node, { x: Math.min(depth * step, width - wide - 1) + 0.5, y: at * room + (room - HEIGHT) / 2 + 0.5, wide }));
  });
  return height + 2;
}

/** From top to bottom, where it is narrow; returns the height. */
function below(layers, width) {
  let top = 0.5;
  for (const layer of layers) {
    const columns = Math.min(layer.length, Math.max(1, Math.floor((width + GAP) / (LEAST + GAP))));
    const wide = Math.min(WIDEST * 1.3, (width - 1 - GAP * (columns - 1)) / columns);
    const left = (width - columns * wide - GAP * (columns - 1)) / 2;
    layer.forEach((node, at) => {
      const column = at % columns, row = Math.floor(at / columns);
      Object.assign(node, { x: left + column * (wide + GAP), y: top + row * (HEIGHT + GAP), wide });
    });
    top += Math.ceil(layer.length / columns) * (HEIGHT + GAP) - GAP + LINK;
  }
  return top - LINK + 2;
}

function box({ kind, id, told, x, y, wide }, amounts) {
  const lines = [["name", id, 7.6], ["", about(kind, told), 6.7], ["amount", amounts, 6.7]];
  const group = draw("g", { class: `node ${kind}`, transform: `translate(${x},${y})` });
  group.append(
    draw("rect", { width: wide, height: HEIGHT, rx: 8 }),
    draw("title", {}, lines.map(([, text]) => text).join("\n")),
    ...lines.map(([name, text, em], at) =>
      draw("text", { class: name, x: 12, y: 20 + at * 17 }, fit(text, (wide - 22) / em))),
  );
  return group;
}

const fit = (text, most) => (text.length <= most ? text : `${text.slice(0, Math.max(1, most - 1))}…`);

function link({ from, to, dead }, across, busy) {
  const [x1, y1, x2, y2] = across
    ? [from.x + from.wide, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2]
    : [from.x + from.wide / 2, from.y + HEIGHT, to.x + to.wide / 2, to.y];
  const d = across
    ? `M${x1},${y1}C${(x1 + x2) / 2},${y1} ${(x1 + x2) / 2},${y2} ${x2},${y2}`
    : `M${x1},${y1}C${x1},${(y1 + y2) / 2} ${x2},${(y1 + y2) / 2} ${x2},${y2}`;
  return draw("path", { class: `edge${dead ? " dead" : busy ? " busy" : ""}`, d });
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
