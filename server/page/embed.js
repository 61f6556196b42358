// Embeddings: the cosine of each pair of texts.
import { count, element, linesOf, number, withVariable } from "./dom.js";
import { usageFact } from "./task.js";

const VALUES = 6;  // of a vector that are shown

function request(fields) {
  const body = { input: linesOf(fields.get("texts")) };
  if (fields.get("pooling")) body.pooling = fields.get("pooling");
  if (fields.get("prompt")) body.prompt = fields.get("prompt");
  if (fields.has("normalize")) body.normalize = true;
  if (fields.has("truncate")) body.truncate = true;
  return { path: "v1/embeddings", body };
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; ++i) sum += a[i] * b[i];
  return sum;
}

// Cosine of each pair of vectors; 0 for a vector without length.
export function cosines(vectors) {
  const norms = vectors.map((vector) => Math.sqrt(dot(vector, vector)));
  return vectors.map((a, i) => vectors.map((b, j) => {
    const norm = norms[i] * norms[j];
    return norm > 0 ? dot(a, b) / norm : 0;
  }));
}

function matrixTable(texts, matrix, low, high) {
  const head = element("tr", {}, element("td", {}), ...texts.map((text, i) =>
    element("th", { scope: "col", title: text }, String(i + 1))));
  const rows = matrix.map((row, i) => element("tr", {},
    element("th", { scope: "row", title: texts[i] },
      element("span", { class: "ordinal" }, String(i + 1)), texts[i]),
    ...row.map((value, j) => {
      const cell = element("td", { class: i === j ? "value same" : "value",
                                   title: i === j ? null : `${i + 1} and ${j + 1}: ${value}` },
        number(value, 3));
      const share = high > low ? (value - low) / (high - low) : 0;
      return i === j ? cell : withVariable(cell, "--share", share.toFixed(3));
    })));
  return element("div", { class: "scroll", tabindex: 0, role: "region",
                          "aria-label": "Similarity matrix" },
    element("table", { class: "matrix" },
      element("caption", { class: "unseen" }, "Cosine of each pair of texts"),
      element("thead", {}, head), element("tbody", {}, ...rows)));
}

function extremes(matrix) {
  const pairs = [];
  matrix.forEach((row, i) => row.forEach((value, j) => {
    if (j > i) pairs.push({ i, j, value });
  }));
  pairs.sort((a, b) => b.value - a.value);
  return [pairs[0], pairs[pairs.length - 1]];
}

function vectorList(texts, vectors) {
  const rows = vectors.map((vector, i) => element("tr", {},
    element("th", { scope: "row" }, element("span", { class: "ordinal" }, String(i + 1)), texts[i]),
    element("td", { class: "value" }, number(Math.sqrt(dot(vector, vector)), 4)),
    element("td", {}, element("code", {},
      `${vector.slice(0, VALUES).map((value) => number(value, 4)).join("  ")}  \u2026`))));
  const head = element("tr", {}, ...["Text", "Length", "First values"].map((name) =>
    element("th", { scope: "col" }, name)));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Vectors" },
    element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}

function view(request) {
  const content = element("div", {});
  const finish = (answer) => {
    const texts = request.body.input;
    const vectors = answer.data.map((item) => item.embedding);
    if (vectors.length > 1) {
      const matrix = cosines(vectors);
      const [best, worst] = extremes(matrix);
      const low = worst.value;
      content.append(
        element("p", { class: "legend" }, "Cosine ", element("span", {}, number(low, 3)),
          element("span", { class: "scale likeness", "aria-hidden": "true" }),
          element("span", {}, number(best.value, 3))),
        element("p", { class: "facts" }, `Most alike: ${best.i + 1} and ${best.j + 1}` +
          (vectors.length > 2 ? `. Least alike: ${worst.i + 1} and ${worst.j + 1}.` : ".")),
        matrixTable(texts, matrix, low, best.value),
        element("details", {}, element("summary", {}, "Vectors"), vectorList(texts, vectors)));
    } else {
      content.append(vectorList(texts, vectors),
        element("p", { class: "hint" }, "Two or more lines give a similarity matrix."));
    }
    return [`${count(vectors.length, "vector")} of ${vectors[0].length}`,
            ...usageFact(answer.usage)];
  };
  return { nodes: [content], wait: "Embedding.", finish };
}

export const embed = { needs: ["encode"], request, view };
