// The page: its models and their states, the API key, and the tasks.
import { ApiError, call, hasKey, setKey } from "./api.js";
import { byId, count, element, show } from "./dom.js";
import { embed } from "./embed.js";
import { generate, showMethodFields } from "./generate.js";
import { classify, rank } from "./scores.js";
import { errorBox, Task } from "./task.js";
import { tokenize } from "./tokenize.js";

const POLL_MS = { steady: 5000, changing: 1000 };

const definitions = { generate, embed, rank, classify, tokenize };
const tasks = {};
let models = [];
let chosen = null;  // name of the chosen model
let serving = null;  // whether /health was 200 last; null: unknown
let needsKey = false;  // the server has refused the key, or the lack of one
let tabChosen = false;  // by the user, or for the first model that was ready

const chosenModel = () => models.find((model) => model.id === chosen) ?? null;

function setStatus(state, text) {
  const status = byId("status");
  status.dataset.state = state;
  if (status.textContent !== text) status.textContent = text;
}

function setNotice(...nodes) {
  const notice = byId("notice");
  const text = nodes.map((node) => node.textContent ?? node).join("");
  if (notice.textContent !== text) notice.replaceChildren(...nodes);
  show(notice, nodes.length > 0);
}

function openKeyForm(error) {
  show(byId("key-form"), true);
  byId("key-button").setAttribute("aria-expanded", "true");
  byId("key-error").textContent = error;
  byId("key").focus();
}

function closeKeyForm() {
  show(byId("key-form"), false);
  byId("key-button").setAttribute("aria-expanded", "false");
}

function describe(model) {
  if (!model.ready) return `loading \u00b7 ${model.device}`;
  const millions = model.parameters / 1e6;
  const size = millions >= 1000 ? `${(millions / 1000).toPrecision(3)} B`
                                : `${millions.toPrecision(2)} M`;
  return `${model.family}, ${size} parameters, ${model.dtype}, ${model.device}`;
}

function modelChoice(model) {
  return element("label", { class: "model", "data-state": model.ready ? "ready" : "wait" },
    element("input", { type: "radio", name: "model", value: model.id, checked: model.id === chosen,
                       onchange: () => choose(model.id) }),
    element("span", { class: "model-name" }, model.id),
    element("span", { class: "model-facts" }, describe(model)),
    model.ready ? element("span", { class: "model-facts" },
      `${model.head} \u00b7 ${count(model.max_input_tokens, "token")}`) : null);
}

function choose(id) {
  chosen = id;
  const model = chosenModel();
  for (const [name, task] of Object.entries(tasks)) {
    task.setModel(model, needsKey ? "The models are shown when the server has accepted an API key."
                                  : "Waiting for the server.");
    byId(`tab-${name}`).classList.toggle("off", model?.ready === true && !canDo(name, model));
  }
}

function showModels(list) {
  if (JSON.stringify(list) === JSON.stringify(models)) return;
  models = list;
  if (chosenModel() === null) chosen = models[0]?.id ?? null;
  const focused = document.activeElement?.name === "model";
  byId("models").replaceChildren(...models.map(modelChoice));
  if (focused) byId("models").querySelector(":checked")?.focus();
  choose(chosen);
  const model = chosenModel();
  if (tabChosen || !model?.ready) return;
  tabChosen = true;
  openTab(Object.keys(definitions).find((name) => canDo(name, model)));
}

function canDo(name, model) {
  const needs = definitions[name].needs;
  return needs.length === 0 || needs.some((task) => model.tasks.includes(task));
}

function openTab(name) {
  for (const tab of document.querySelectorAll('[role="tab"]')) {
    const selected = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", String(selected));
    tab.tabIndex = selected ? 0 : -1;
    show(byId(tab.getAttribute("aria-controls")), selected);
  }
}

function moveInTabs(event) {
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  const at = tabs.indexOf(event.target);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  const tab = tabs[(to + tabs.length) % tabs.length];
  tabChosen = true;
  openTab(tab.getAttribute("aria-controls"));
  tab.focus();
}

async function loadModels() {
  showModels(JSON.parse((await call("v1/models")).text).data);
  const loading = models.filter((model) => !model.ready).length;
  if (serving) {
    setStatus("ready", "Serving");
    setNotice();
  } else if (loading > 0) {
    setStatus("wait", `Loading ${count(loading, "model")}`);
    setNotice();
  } else {
    setStatus("wait", "Draining");
    setNotice("The server is shutting down: it ends running requests and then refuses new ones.");
  }
}

async function loadVersion() {
  const version = byId("version");
  if (version.textContent !== "") return;
  version.textContent = JSON.parse((await call("openapi.json")).text).info.version;
}

async function isServing() {
  try {
    await call("health");
    return true;
  } catch (error) {
    if (error.status === 503) return false;
    throw error;
  }
}

function showServerError(error) {
  if (!(error instanceof ApiError)) throw error;
  if (error.status === 401 || error.status === 403) {
    needsKey = true;
    setStatus("wait", "API key needed");
    setNotice();
    showModels([]);
    choose(null);
    openKeyForm(hasKey() ? error.message : "");
  } else if (error.status === 0) {
    setStatus("error", "Unreachable");
    setNotice(`${error.message} This page tries again.`);
  } else {
    setStatus("error", `HTTP ${error.status}`);
    setNotice(errorBox(error));
  }
}

// Requests the state of the server, and its models when they may have changed. A request for
// /health is no RPC: it is not in the access log.
async function refresh() {
  try {
    const now = await isServing();
    const changed = now !== serving || models.some((model) => !model.ready) || !now;
    serving = now;
    if (changed) {
      await loadModels();
      await loadVersion();
    }
  } catch (error) {
    serving = null;
    showServerError(error);
  }
}

// Starts again with the key that was entered, or without one.
async function useKey() {
  needsKey = false;
  serving = null;
  await refresh();
}

async function poll() {
  if (!document.hidden && !needsKey) await refresh();
  setTimeout(poll, serving === true ? POLL_MS.steady : POLL_MS.changing);
}

function start() {
  for (const [name, definition] of Object.entries(definitions)) {
    tasks[name] = new Task(byId(name), definition, openKeyForm);
  }
  choose(null);
  const form = byId("generate").querySelector("form");
  form.addEventListener("change", () => showMethodFields(form));
  showMethodFields(form);
  openTab("generate");
  byId("tabs").addEventListener("keydown", moveInTabs);
  byId("tabs").addEventListener("click", (event) => {
    const name = event.target.getAttribute("aria-controls");
    if (name === null) return;
    tabChosen = true;
    openTab(name);
  });
  byId("key-button").addEventListener("click", () => {
    if (byId("key-form").hidden) openKeyForm("");
    else closeKeyForm();
  });
  byId("key-forget").addEventListener("click", () => {
    setKey("");
    byId("key").value = "";
    byId("key-error").textContent = "";
    useKey();
  });
  byId("key-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    setKey(byId("key").value);
    closeKeyForm();
    await useKey();
  });
  poll();
}

start();
