// Requests to the API of this server. The API key is a variable of this module and nothing else: it
// is in no storage, address or snippet.

let key = "";

export function setKey(text) {
  key = text.trim();
}

export const hasKey = () => key !== "";

// The address of a route. The page may be below a path of a proxy.
export const urlOf = (path) => new URL(path, document.baseURI).href;

// An answer that is not a result. `message` is the server's text, unchanged; status 0: there was no
// answer.
export class ApiError extends Error {
  constructor(status, message, details = {}) {
    super(message);
    this.status = status;
    this.code = details.code ?? "";
    this.requestId = details.requestId ?? "";
    this.retryAfter = details.retryAfter ?? "";
  }
}

// The error in a JSON object of the server, or null. OpenAI's routes nest it, the others do not.
export function errorIn(object) {
  const error = object?.error;
  if (error === undefined || error === null) return null;
  if (typeof error === "string") return { message: error, code: object.error_type ?? "" };
  return { message: String(error.message ?? ""), code: String(error.code ?? error.type ?? "") };
}

function failureOf(response, text) {
  let error = null;
  try {
    error = errorIn(JSON.parse(text));
  } catch {
    // Not JSON: a proxy between, perhaps. Its text is shown as it is.
  }
  const details = {
    code: error?.code,
    requestId: response.headers.get("x-request-id") ?? "",
    retryAfter: response.headers.get("retry-after") ?? "",
  };
  return new ApiError(response.status, error?.message || text || response.statusText, details);
}

// Splits server-sent events. Feed returns the data of the events that are complete.
export class EventParser {
  #rest = "";

  feed(text) {
    const blocks = (this.#rest + text).split("\n\n");
    this.#rest = blocks.pop();
    return blocks.flatMap((block) =>
      block.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)));
  }
}

// Reads a stream of events, and calls onEvent with the object of each. Returns the whole text.
async function readEvents(response, onEvent, requestId) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventParser();
  let text = "";
  let ended = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    text += value;
    for (const data of parser.feed(value)) {
      if (data === "[DONE]") {
        ended = true;
        continue;
      }
      const object = JSON.parse(data);
      const error = errorIn(object);
      if (error !== null) throw new ApiError(200, error.message, { code: error.code, requestId });
      onEvent(object);
    }
  }
  if (!ended) throw new ApiError(0, "The connection ended before the answer was complete.");
  return text;
}

// Makes a request. Options: `body` (text of JSON; makes it a POST), `timeout` (seconds, as text),
// `signal`, and `onEvent` for streams. Returns { text, requestId }. Throws ApiError, or AbortError
// of `signal`.
export async function call(path, { body, timeout, signal, onEvent } = {}) {
  const headers = new Headers();
  if (body !== undefined) headers.set("Content-Type", "application/json");
  let response;
  try {
    if (key !== "") headers.set("Authorization", `Bearer ${key}`);
    if (timeout) headers.set("X-Request-Timeout", timeout);
  } catch (error) {
    throw new ApiError(0, `The key or deadline cannot be sent in a header: ${error.message}`);
  }
  try {
    const method = body === undefined ? "GET" : "POST";
    response = await fetch(urlOf(path), { method, headers, body, signal, cache: "no-store" });
    const requestId = response.headers.get("x-request-id") ?? "";
    if (!response.ok) throw failureOf(response, await response.text());
    const type = response.headers.get("content-type") ?? "";
    const text = type.startsWith("text/event-stream")
      ? await readEvents(response, onEvent, requestId)
      : await response.text();
    return { text, requestId };
  } catch (error) {
    if (error instanceof ApiError || error.name === "AbortError") throw error;
    const what = response === undefined
      ? "No answer: the server cannot be reached."
      : "The connection ended before the answer was complete.";
    throw new ApiError(0, what);
  }
}
