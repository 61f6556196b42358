// A task: a form in a panel, its request, and the result below it.
import { ApiError, call } from "./api.js";
import { count, element, milliseconds, show } from "./dom.js";
import { toJson } from "./json.js";
import { requestSection } from "./request.js";

const TITLES = {
  0: "No answer",
  400: "Invalid request",
  401: "API key needed",
  403: "API key refused",
  404: "Not found",
  409: "The model cannot do this",
  413: "Request too large",
  429: "The server is full",
  500: "Error in the server",
  503: "The server does not accept requests",
  504: "Deadline passed",
};

// The box that shows an error: what kind it is, and the server's text as it is.
export function errorBox(error, actions = []) {
  const facts = [];
  if (error.status >= 400) facts.push(`HTTP ${error.status}`);
  if (error.code) facts.push(error.code);
  if (error.requestId) facts.push(`request ${error.requestId}`);
  if (error.retryAfter) facts.push(`retry after ${error.retryAfter} s`);
  const title = TITLES[error.status] ?? (error.status < 400 ? "Error" : `HTTP ${error.status}`);
  return element("div", { class: "error", role: "alert" },
    element("h3", {}, title),
    element("p", { class: "verbatim" }, error.message),
    facts.length > 0 ? element("p", { class: "facts" }, facts.join(" \u00b7 ")) : null,
    actions.length > 0 ? element("p", { class: "actions" }, ...actions) : null);
}

export class Task {
  // `definition`: { needs, request(fields), view(request) }. `needs` lists the tasks of a model of
  // which it must have one; empty: any model will do. `request` returns { path, body, timeout,
  // stream } from the FormData. `view` returns { nodes, wait, onEvent(object), finish(answer) }:
  // the nodes that show the answer, and a text for the time before it; `finish` gets the object of
  // the answer, null for a stream, and returns the facts of the status line.
  constructor(panel, definition, onKeyNeeded) {
    this.panel = panel;
    this.needs = definition.needs;
    this.definition = definition;
    this.onKeyNeeded = onKeyNeeded;
    this.model = null;
    this.form = panel.querySelector("form");
    this.runButton = element("button", { class: "primary", "aria-keyshortcuts": "Control+Enter" },
      "Run", element("kbd", { "aria-hidden": "true" }, "Ctrl \u21b5"));
    this.stopButton = element("button", { type: "button", hidden: true,
                                          onclick: () => this.stop() }, "Stop");
    this.form.querySelector(".actions").append(this.runButton, this.stopButton);
    this.unavailable = element("div", { class: "empty", hidden: true });
    this.status = element("p", { class: "facts", role: "status" });
    this.output = element("div", { class: "output" });
    this.result = element("section", { class: "result", "aria-label": "Result" },
      this.status, this.output);
    panel.append(this.unavailable, this.result);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    this.form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.run();
      } else if (event.key === "Escape" && this.running) {
        this.stop();
      }
    });
    this.output.append(element("p", { class: "empty" },
      "No result yet. It appears here, with the curl command and the Python code of its request."));
  }

  get running() {
    return this.controller !== undefined;
  }

  // Shows the form, or why `model` cannot do this task; for null, the text `absence`.
  setModel(model, absence) {
    this.model = model;
    const why = model === null ? absence : this.#whyNot(model);
    this.unavailable.textContent = why;
    show(this.unavailable, why !== "");
    show(this.form, why === "");
    show(this.result, why === "");
  }

  #whyNot(model) {
    if (!model.ready) return `${model.id} is being loaded. The form appears when it is ready.`;
    if (this.definition.refuses?.(model)) return this.definition.refuses(model);
    if (this.needs.length === 0 || this.needs.some((task) => model.tasks.includes(task))) return "";
    const tasks = model.tasks.length > 0 ? model.tasks.join(", ") : "none";
    return `${model.id} has no head for this task. Its head: ${model.head}. Its tasks: ${tasks}.`;
  }

  stop() {
    this.controller?.abort();
  }

  #setRunning(controller) {
    this.controller = controller;
    show(this.stopButton, controller !== undefined);
    this.runButton.disabled = controller !== undefined;
    this.result.setAttribute("aria-busy", String(controller !== undefined));
  }

  async run() {
    if (this.running || this.form.hidden) return;
    const fields = new FormData(this.form);
    const request = this.definition.request(fields);
    request.body = { model: this.model.id, ...request.body };
    const view = this.definition.view(request, this.model);
    const controller = new AbortController();
    this.#setRunning(controller);
    this.status.textContent = view.wait;
    this.output.replaceChildren(...view.nodes);
    const started = performance.now();
    let first = null;
    let answer = null;
    try {
      answer = await call(request.path, {
        body: toJson(request.body),
        timeout: request.timeout,
        signal: controller.signal,
        onEvent: (object) => {
          first ??= performance.now() - started;
          view.onEvent(object);
        },
      });
      const facts = view.finish(request.stream ? null : JSON.parse(answer.text));
      if (first !== null) facts.push(`first text after ${milliseconds(first)}`);
      facts.push(`${milliseconds(performance.now() - started)} in all`);
      if (answer.requestId) facts.push(`request ${answer.requestId}`);
      this.status.textContent = facts.join(" \u00b7 ");
    } catch (error) {
      this.#showFailure(error);
    } finally {
      this.#setRunning(undefined);
    }
    this.output.append(requestSection(request, answer?.text ?? null));
  }

  #showFailure(error) {
    if (error.name === "AbortError") {
      this.status.textContent = "Stopped: the request was cancelled.";
      return;
    }
    this.status.textContent = "";
    if (!(error instanceof ApiError)) {
      console.error(error);
      this.output.prepend(errorBox(
        new ApiError(200, `The page cannot show this answer: ${error.message}`)));
      return;
    }
    const actions = [];
    if (error.status === 401 || error.status === 403) {
      actions.push(element("button", { type: "button", onclick: () => this.onKeyNeeded("") },
        "Enter an API key"));
    } else if (error.status === 0 || error.status === 429 || error.status >= 500) {
      actions.push(element("button", { type: "button", onclick: () => this.run() }, "Run again"));
    }
    // A stream that failed keeps what it had.
    if (error.status >= 400) this.output.replaceChildren();
    this.output.prepend(errorBox(error, actions));
  }
}

// "3 tokens in, 7 out", from the usage of an answer.
export function usageFact(usage) {
  if (!usage) return [];
  const output = usage.completion_tokens > 0 ? `, ${usage.completion_tokens} out` : "";
  return [`${count(usage.prompt_tokens, "token")} in${output}`];
}
