// The section of a result that shows its request: a curl command, a Python program, and the answer.
import { hasKey, urlOf } from "./api.js";
import { element } from "./dom.js";
import { toJson, toPython } from "./json.js";

const SHOWN_CHARACTERS = 100_000;

// Between single quotes, a shell changes nothing.
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function curlOf({ path, body, timeout, stream }) {
  const lines = [`curl${stream ? " -N" : ""} --json ${quoted(toJson(body))}`];
  if (hasKey()) lines.push('-H "Authorization: Bearer $QUINTET_API_KEY"');
  if (timeout) lines.push(`-H ${quoted(`X-Request-Timeout: ${timeout}`)}`);
  lines.push(quoted(urlOf(path)));
  return lines.join(" \\\n  ");
}

export function pythonOf({ path, body, timeout, stream }) {
  const headers = [];
  if (hasKey()) headers.push('"Authorization": f"Bearer {os.environ[\'QUINTET_API_KEY\']}"');
  if (timeout) headers.push(`"X-Request-Timeout": ${toPython(timeout)}`);
  const extra = headers.length > 0 ? `, headers={${headers.join(", ")}}` : "";
  const modules = ["requests"];
  if (hasKey()) modules.unshift("os");
  if (stream) modules.unshift("json");
  const start = `${modules.map((name) => `import ${name}\n`).join("")}
url = ${toPython(urlOf(path))}
body = ${toPython(body)}
`;
  if (!stream) {
    return `${start}answer = requests.post(url, json=body${extra})
print(answer.json())
`;
  }
  return `${start}with requests.post(url, json=body, stream=True${extra}) as answer:
    if not answer.ok:
        raise SystemExit(answer.text)
    for line in answer.iter_lines():
        if line.startswith(b"data: {"):
            print(json.loads(line[6:]))
`;
}

function answerText(text) {
  let shown = text;
  try {
    if (text.length <= SHOWN_CHARACTERS) shown = toJson(JSON.parse(text));
  } catch {
    // A stream of events is shown as it came.
  }
  if (shown.length <= SHOWN_CHARACTERS) return shown;
  return `${shown.slice(0, SHOWN_CHARACTERS)}\n\u2026 ${shown.length} characters in all`;
}

// A button that copies what `text` returns. Browsers give the clipboard only to pages of TLS or of
// loopback addresses; on others the button selects the content of `node`.
export function copyButton(text, node) {
  const button = element("button", {
    type: "button",
    class: "quiet",
    onclick: async () => {
      try {
        await navigator.clipboard.writeText(text());
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(node);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    },
  }, "Copy");
  return button;
}

let made = 0;

// The section for a request { path, body, timeout, stream }; `answer` is the text of the response,
// or null.
export function requestSection(request, answer) {
  const texts = { curl: curlOf(request), Python: pythonOf(request) };
  if (answer !== null) texts.Answer = answerText(answer);
  const id = `request-${++made}`;
  const shown = element("pre", { tabindex: 0, role: "region", "aria-label": "curl" });
  const choose = (name) => {
    shown.textContent = texts[name];
    shown.setAttribute("aria-label", name);
  };
  const choices = Object.keys(texts).map((name, i) => element("label", {},
    element("input", { type: "radio", name: id, value: name, checked: i === 0,
                       onchange: () => choose(name) }),
    element("span", {}, name)));
  choose("curl");
  return element("section", { class: "request", "aria-label": "Request" },
    element("div", { class: "request-head" },
      element("h3", {}, "Request"),
      element("fieldset", { class: "segments small" },
        element("legend", { class: "unseen" }, "Shown as"), ...choices),
      copyButton(() => shown.textContent, shown)),
    shown,
    hasKey() ? element("p", { class: "hint" }, "The key is read from the environment variable ",
      element("code", {}, "QUINTET_API_KEY"), ".") : null);
}
