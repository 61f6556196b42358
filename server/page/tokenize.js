// Tokenization: the tokens of a text in a row, and their ids in a table.
import { count, element, visible } from "./dom.js";

function request(fields) {
  const body = { inputs: fields.get("text") };
  if (!fields.has("add_special_tokens")) body.add_special_tokens = false;
  return { path: "tokenize", body };
}

function tokenRow(tokens) {
  return element("p", { class: "text pieces" }, ...tokens.map((token) =>
    element("span", { class: token.special ? "piece bare" : "piece", title: `id ${token.id}` },
      visible(token.text))));
}

function idTable(tokens) {
  const head = element("tr", {}, ...["Token", "Id", "Characters"].map((name) =>
    element("th", { scope: "col" }, name)));
  const rows = tokens.map((token) => element("tr", {},
    element("td", {}, element("code", {}, visible(token.text))),
    element("td", { class: "value" }, String(token.id)),
    element("td", { class: "value" }, token.start === null
      ? "\u2013" : `${token.start}\u2013${token.stop}`)));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tokens" },
    element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}

function view(request) {
  const content = element("div", { class: "card" });
  const finish = (answer) => {
    const tokens = answer[0];
    content.append(tokenRow(tokens),
      element("details", { open: tokens.length <= 40 }, element("summary", {}, "Ids and offsets"),
        idTable(tokens)));
    const characters = Array.from(request.body.inputs).length;
    return [count(tokens.length, "token"), count(characters, "character")];
  };
  return { nodes: [content], wait: "Tokenizing.", finish };
}

export const tokenize = { needs: [], request, view };
