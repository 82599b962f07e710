// Numbers and times as text, and a little DOM.

const SI = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

/** Three digits and a prefix: 19 284 becomes "19.3 k". */
export function amount(value, unit = "") {
  if (value == null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const [scale, prefix] = SI.find(([least]) => size >= least * 0.9995) ?? [1, ""];
  const text = scale === 1 && Number.isInteger(value) ? String(value) : digits(value / scale);
  return prefix + unit ? `${text} ${prefix}${unit}` : text;
}

/** Three digits, no prefix. */
export function digits(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 || size === 0 ? 0 : size >= 9.995 ? 1 : 2);
}

/** Every digit of a count. */
export const count = (value) => (value == null ? "–" : value.toLocaleString("en").replaceAll(",", " "));

export function duration(seconds) {
  if (seconds == null) return "–";
  const s = Math.max(0, Math.round(seconds));
  if (s < 100) return `${s} s`;
  if (s < 6000) return `${Math.round(s / 60)} min`;
  if (s < 172_800) return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
  return `${Math.round(s / 86_400)} days`;
}

export const clock = (us) => new Date(us / 1000).toLocaleTimeString("en-GB");

export const byId = (id) => document.getElementById(id);

/** Set a text only where it changes, so that a selection stays. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Let a screen reader say a text: the answer to a key, or a change of state. */
export const speak = (text) => say(byId("spoken"), text);

/** An element with a class and children: texts or elements. */
export function make(tag, name = "", ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children);
  return element;
}

/** The same for SVG, with attributes. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Where an energy figure comes from: measured, modelled or simulated. */
export function mark(element, provenance) {
  element.className = `tag ${provenance ?? ""}`;
  say(element, provenance ?? "");
}
