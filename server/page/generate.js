// Generation: streams of text, then beams or samples side by side.
import { count, element, linesOf, number, percent } from "./dom.js";
import { Literal, numberField } from "./json.js";
import { copyButton } from "./request.js";
import { usageFact } from "./task.js";
import { differences, legend, partsOf, tokenNodes } from "./tokens.js";

const ALTERNATIVES = 5;

// Appends the field `to` of the request if the user has filled in `from`.
function addNumber(body, to, fields, from = to) {
  const text = (fields.get(from) ?? "").trim();
  if (text !== "") body[to] = numberField(text);
}

function randomSeed() {
  return new Literal(String(crypto.getRandomValues(new Uint32Array(1))[0]));
}

function addMethod(body, fields) {
  const method = fields.get("method");
  if (method === "greedy") {
    Object.assign(body, { temperature: 0, num_beams: 1 });
  } else if (method === "beams") {
    Object.assign(body, { temperature: 0, use_beam_search: true });
    addNumber(body, "n", fields, "beams");
    if (fields.get("beams").trim() !== "1") body.return_scores = true;
    addNumber(body, "length_penalty", fields);
    if (fields.get("early_stopping")) body.early_stopping = fields.get("early_stopping");
  } else if (method === "sampling") {
    body.num_beams = 1;
    addNumber(body, "n", fields, "samples");
    for (const name of ["temperature", "top_k", "top_p", "min_p", "typical_p"]) {
      addNumber(body, name, fields);
    }
    addNumber(body, "seed", fields);
    body.seed ??= randomSeed();  // sent, so that the request can be repeated
  }
}

function request(fields) {
  const body = { prompt: fields.get("prompt") };
  addMethod(body, fields);
  for (const name of ["max_tokens", "min_new_tokens", "repetition_penalty",
                      "no_repeat_ngram_size"]) {
    addNumber(body, name, fields);
  }
  const stop = linesOf(fields.get("stop"));
  if (stop.length > 0) body.stop = stop;
  if (fields.get("decoder_prefix")) body.decoder_prefix = fields.get("decoder_prefix");
  if (fields.get("priority")) body.priority = fields.get("priority");
  if (fields.has("logprobs")) body.logprobs = ALTERNATIVES;
  const stream = fields.has("stream");
  if (stream) Object.assign(body, { stream: true, stream_options: { include_usage: true } });
  return { path: "v1/completions", body, timeout: fields.get("timeout").trim(), stream };
}

// One card: a beam or sample.
class Choice {
  constructor(name) {
    this.name = name;
    this.text = "";
    this.facts = element("p", { class: "facts" });
    this.score = element("p", { class: "score" });
    this.content = element("div", { class: "content" });
    this.streamed = element("p", { class: "text streaming" });
    this.content.append(this.streamed);
    this.node = element("article", { class: "card", "aria-label": this.name },
      element("header", {}, element("h3", {}, this.name), copyButton(() => this.text, this.content)),
      this.score, this.content, this.facts);
  }

  append(text) {
    this.text += text;
    this.streamed.append(text);
  }

  // Shows the complete choice in place of the streamed text.
  complete(choice, first) {
    const parts = partsOf(this.text, choice.logprobs);
    this.parts = parts;
    const differs = first === null ? null : differences(first.parts, parts);
    this.content.replaceChildren(...(this.text === "" && !choice.logprobs
      ? [element("p", { class: "empty" }, "Empty text.")]
      : tokenNodes(parts, differs, `Text of ${this.name}`)));
    const facts = [];
    if (choice.logprobs) {
      const sum = choice.logprobs.token_logprobs.reduce((total, value) => total + value, 0);
      facts.push(count(parts.length, "token"), `ln\u00a0p\u00a0${number(sum, 3)}`,
        percent(Math.exp(sum)));
    }
    facts.push(choice.stop_reason ? `ended by ${JSON.stringify(choice.stop_reason)}`
                                  : `finish ${choice.finish_reason}`);
    this.facts.textContent = facts.join(" \u00b7 ");
    if (typeof choice.score !== "number") return;
    const gap = first === null || typeof first.scoreValue !== "number"
      ? "" : ` \u00b7 ${number(choice.score - first.scoreValue, 3)} to the first`;
    this.scoreValue = choice.score;
    this.score.textContent = `score ${number(choice.score, 3)}${gap}`;
  }
}

function view(request) {
  const grid = element("div", { class: "cards" });
  const tools = element("div", { class: "result-tools" });
  const searches = request.body.use_beam_search === true;
  const name = searches ? "Beam" : "Text";
  const several = request.body.n !== undefined;
  const choices = new Map();
  const finals = new Map();
  let usage = null;
  const choiceOf = (index) => {
    if (!choices.has(index)) {
      choices.set(index, new Choice(several || index > 0 ? `${name} ${index + 1}` : name));
      const order = [...choices.keys()].sort((a, b) => a - b);
      grid.replaceChildren(...order.map((one) => choices.get(one).node));
    }
    return choices.get(index);
  };
  const take = (object) => {
    usage = object.usage ?? usage;
    for (const choice of object.choices) {
      choiceOf(choice.index).append(choice.text);
      if (choice.finish_reason !== null) finals.set(choice.index, choice);
    }
  };
  const finish = (answer) => {
    if (answer !== null) take(answer);
    const order = [...finals.keys()].sort((a, b) => a - b);
    let first = null;
    for (const index of order) {
      choices.get(index).complete(finals.get(index), first);
      first ??= choices.get(index);
    }
    if (request.body.logprobs) tools.append(legend());
    if (order.length > 1) {
      const onchange = (event) => grid.classList.toggle("plain", !event.target.checked);
      tools.append(element("label", { class: "check" },
        element("input", { type: "checkbox", checked: true, onchange }),
        " Underline what differs from the first"));
    }
    const facts = [count(order.length, name.toLowerCase()), ...usageFact(usage)];
    if (request.body.seed) facts.push(`seed ${request.body.seed.text ?? request.body.seed}`);
    return facts;
  };
  const wait = searches ? "Searching. Beams arrive together when the search ends." : "Generating.";
  return { nodes: [tools, grid], wait, onEvent: take, finish };
}

export const generate = { needs: ["generate"], request, view };

// Shows the fields of the chosen method.
export function showMethodFields(form) {
  const method = new FormData(form).get("method");
  for (const node of form.querySelectorAll("[data-for]")) {
    node.hidden = node.dataset.for !== method;
  }
}
