// The reference of the API, drawn from its OpenAPI document.  Every text becomes a text node.

import { denied, headers, refusal, remember, token } from "/page/access.js";
import { byId, make, say } from "/page/figures.js";

const DOCUMENT = "/v1/openapi.json";
const SOCKET = "/run/edged/api.sock";

async function load() {
  const answer = await fetch(DOCUMENT, { headers: headers() }).catch((error) => error);
  const asks = answer instanceof Response && denied(answer);
  const problem = answer instanceof Error ? `The API does not answer: ${answer.message}`
    : answer.ok || (asks && !token()) ? "" : await refusal(answer);
  byId("ask").hidden = !asks;
  byId("notice").hidden = !problem;
  say(byId("notice"), problem);
  if (answer.ok) show(await answer.json());
  else say(byId("about"), asks ? "token needed" : "");
}

/** Draw the whole document: operations by tag, then the schemas. */
function show({ info, paths, components }) {
  say(byId("about"), `version ${info.version}, from `);
  byId("about").append(link(DOCUMENT, DOCUMENT));
  const groups = new Map();
  for (const [path, methods] of Object.entries(paths)) {
    for (const [method, told] of Object.entries(methods)) {
      const tag = told.tags?.[0] ?? "other";
      groups.set(tag, [...(groups.get(tag) ?? []), operation(method.toUpperCase(), path, told)]);
    }
  }
  groups.set("schemas", Object.entries(components.schemas).map(([name, told]) => schema(name, told)));
  const sections = [...groups].map(([tag, parts]) => {
    const section = make("section", "", make("h2", "", tag), ...parts.map(({ part }) => part));
    section.setAttribute("aria-label", tag);
    return section;
  });
  byId("reference").replaceChildren(...prose(info.description), ...sections);
  byId("contents").replaceChildren(...[...groups].map(([tag, parts]) =>
    make("section", "", make("h2", "", tag), make("ul", "", ...parts.map(({ entry }) => entry)))));
  document.querySelector(".reference").hidden = false;
  find();
  if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

function link(to, ...text) {
  const a = make("a", "", ...text);
  a.href = to;
  return a;
}

/** Paragraphs of a description; what is between backticks is code. */
const prose = (text = "") => text.trim().split("\n\n").filter(Boolean).map((part) => make("p", "", ...inline(part)));

const inline = (text = "") => text.split("`").map((part, at) => (at % 2 ? make("code", "", part) : part));

/** An article of the reference, and the entry of the contents that leads there. */
function article(id, title, ...children) {
  const part = make("article", "part", make("h3", "", ...title), ...children);
  part.id = id;
  const copies = title.map((one) => (one instanceof Node ? one.cloneNode(true) : one));
  return { part, entry: make("li", "", link(`#${id}`, ...copies)) };
}

function operation(method, path, told) {
  const title = [make("b", `verb ${method.toLowerCase()}`, method), " ", make("code", "", path)];
  const scope = told["x-scope"] === "public" ? ["Needs no token."] : ["Needs the scope ", make("code", "", told["x-scope"]), "."];
  return article(told.operationId, title, ...prose(told.description), make("p", "note", ...scope),
    ...table("Parameters", (told.parameters ?? []).map((one) => [one.name, one.in, one.required, one.schema, one.description])),
    ...content("Body", told.requestBody?.content), curl(method, path, told), ...Object.entries(told.responses).map(response));
}

/** A table of named values: parameters, headers, or the keys of a schema. */
function table(caption, rows) {
  if (!rows.length) return [];
  const cells = rows.map(([name, where, required, told, description]) => make("tr", "",
    make("td", "", make("code", "", name), required ? " " : "", required ? make("small", "", "required") : ""),
    make("td", "", where ? `${where}, ` : "", ...type(told)),
    make("td", "", ...inline(description ?? told.description), ...limits(told))));
  return [make("table", "", make("caption", "", caption), make("tbody", "", ...cells))];
}

/** The type of a schema; a schema with a name is a link to its article. */
function type(told) {
  if (told.$ref) return [link(`#schema-${told.$ref.split("/").at(-1)}`, told.$ref.split("/").at(-1))];
  if (told.anyOf) return told.anyOf.flatMap((one, at) => (at ? [" or ", ...type(one)] : type(one)));
  const words = told.enum ?? ("const" in told ? [told.const] : null);
  if (words) return [words.map((one) => JSON.stringify(one)).join(" or ")];
  if (told.type === "array") return ["list of ", ...type(told.items ?? {})];
  if (told.type === "object" && told.additionalProperties?.type) return ["object of ", ...type(told.additionalProperties)];
  return [[told.type ?? "any", told.format && `(${told.format})`].filter(Boolean).join(" ")];
}

/** Limits, default and example of a schema. */
function limits(told) {
  const all = [told, ...(told.anyOf ?? [])];
  const named = { minimum: "at least", maximum: "at most", minLength: "characters, at least", maxLength: "characters, at most", pattern: "matches", default: "default", examples: "for example" };
  const said = Object.entries(named).flatMap(([key, words]) => all.filter((one) => one[key] != null && one[key] !== "")
    .map((one) => make("small", "", `${words} `, make("code", "", JSON.stringify(key === "examples" ? one[key][0] : one[key])))));
  return said.flatMap((one) => [" ", one]);
}

/** Media types with their schemas and examples. */
function content(caption, media = {}) {
  return Object.entries(media).flatMap(([name, told]) => {
    const examples = [told.example, ...Object.values(told.examples ?? {}).map((one) => one.value)].filter((one) => one !== undefined);
    return [make("p", "", `${caption}: `, make("code", "", name), ", ", ...type(told.schema)),
      ...table("Keys", keys(told.schema)), ...examples.map(code)];
  });
}

const keys = ({ properties = {}, required = [] }) =>
  Object.entries(properties).map(([name, told]) => [name, "", required.includes(name), told]);

/** A block that scrolls inside; with keys, too. */
function code(value) {
  const block = make("pre", "", make("code", "", typeof value === "string" ? value : JSON.stringify(value, null, 2)));
  block.tabIndex = 0;
  return block;
}

function curl(method, path, { requestBody, parameters = [] }) {
  const query = parameters.filter((one) => one.in === "query" && one.required).map(({ name }) => `${name}=…`).join("&");
  const media = Object.keys(requestBody?.content ?? {})[0];
  const words = ["curl", `--unix-socket ${SOCKET}`, method === "GET" ? "" : `-X ${method}`,
    media ? `-H 'Content-Type: ${media}' --data-binary @FILE` : "", `'http://localhost${path}${query ? `?${query}` : ""}'`];
  return code(words.filter(Boolean).join(" "));
}

function response([status, told]) {
  const summary = make("summary", "", make("code", Number(status) < 400 ? "good" : "", status), " ", told.description);
  const rows = Object.entries(told.headers ?? {}).map(([name, one]) => [name, "", false, one.schema, one.description]);
  return make("details", "", summary, ...content("Answer", told.content), ...table("Headers", rows));
}

function schema(name, told) {
  return article(`schema-${name}`, [name], ...prose(told.description), ...table("Keys", keys(told)));
}

/** Show the articles that contain every word, and their links. */
function find() {
  const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const part of document.querySelectorAll(".part")) {
    const text = part.textContent.toLowerCase();
    part.hidden = !words.every((word) => text.includes(word));
    shown += !part.hidden;
    byId("contents").querySelector(`a[href="#${part.id}"]`).parentElement.hidden = part.hidden;
  }
  for (const section of document.querySelectorAll(".reference section")) {
    section.hidden = [...section.querySelectorAll(".part, li")].every((one) => one.hidden);
  }
  say(document.querySelector("nav .note"), words.length ? `${shown} found` : "");
}

byId("find").addEventListener("input", find);
byId("ask").addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  remember(byId("token").value.trim());
  load();
});
load();
