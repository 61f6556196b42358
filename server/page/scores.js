// Ranking and classification: texts or labels with bars for their scores.
import { bar, count, element, linesOf, number, percent } from "./dom.js";
import { usageFact } from "./task.js";

const LABELS = 10;  // shown of each text before the rest is folded

function scoreRow(name, value, share, shown, rank) {
  return element("li", {},
    rank === null ? null : element("span", { class: "ordinal" }, String(rank)),
    element("span", { class: "name" }, name), bar(share),
    element("span", { class: "value", title: String(value) }, shown));
}

function rankRequest(fields) {
  const body = { text_1: fields.get("query"), text_2: linesOf(fields.get("documents")) };
  if (fields.has("truncate")) body.truncate = true;
  return { path: "score", body };
}

function rankView(request) {
  const list = element("ol", { class: "scores" });
  const finish = (answer) => {
    const sorted = [...answer.data].sort((a, b) => b.score - a.score);
    const best = sorted[0].score;
    // Where all scores are below 0, they are log-likelihoods: the best one has the longest bar.
    const share = (value) => (best < 0 ? Math.exp(value - best) : value / Math.max(best, 1));
    list.append(...sorted.map((item, i) => scoreRow(request.body.text_2[item.index], item.score,
      share(item.score), number(item.score, 4), i + 1)));
    return [count(sorted.length, "text"), ...usageFact(answer.usage)];
  };
  return { nodes: [list], wait: "Scoring.", finish };
}

export const rank = { needs: ["score", "encode"], request: rankRequest, view: rankView };

function classifyRequest(fields) {
  const body = { inputs: linesOf(fields.get("texts")) };
  if (fields.has("raw_scores")) body.raw_scores = true;
  if (fields.has("truncate")) body.truncate = true;
  return { path: "predict", body };
}

function labelRows(labels, raw) {
  const best = labels[0].score;
  return labels.map((item) => scoreRow(item.label, item.score,
    raw ? Math.exp(item.score - best) : item.score,
    raw ? number(item.score, 3) : percent(item.score), null));
}

function classifyView(request) {
  const list = element("div", { class: "cards" });
  const finish = (answer) => {
    const raw = request.body.raw_scores === true;
    answer.forEach((labels, i) => {
      const rows = labelRows(labels, raw);
      list.append(element("article", { class: "card" },
        element("header", {}, element("h3", { class: "quote" }, request.body.inputs[i])),
        element("ol", { class: "scores" }, ...rows.slice(0, LABELS)),
        rows.length <= LABELS ? null : element("details", {},
          element("summary", {}, count(rows.length - LABELS, "more label")),
          element("ol", { class: "scores" }, ...rows.slice(LABELS)))));
    });
    return [count(answer.length, "text"), count(answer[0].length, "label")];
  };
  return { nodes: [list], wait: "Classifying.", finish };
}

function refuses(model) {
  if (model.head !== "token classification" && model.head !== "question answering") return "";
  return `${model.id} has a head for ${model.head}. The HTTP API labels whole texts only; ` +
         "Classify of quintet.v1 (gRPC) serves this head.";
}

export const classify = {
  needs: ["classify"], request: classifyRequest, view: classifyView, refuses,
};
