// Generated text whose tokens have colours for their probabilities, and what the model would have
// preferred instead.
import { bar, element, number, percent, visible, withVariable } from "./dom.js";

const DIFF_CELLS = 250_000;

// The parts of a text: the tokens of `logprobs` (OpenAI's object), or its words without it. Parts:
// { text, piece, logProb, top }; the last three are undefined without log-probabilities. A token
// without text of its own (an end token, the first bytes of a character) has an empty one.
export function partsOf(text, logprobs) {
  if (!logprobs) return text.split(/(?<=\s)(?=\S)/).map((word) => ({ text: word }));
  const characters = Array.from(text);  // offsets count code points
  return logprobs.tokens.map((piece, i) => {
    const begin = logprobs.text_offset[i];
    const end = logprobs.text_offset[i + 1] ?? characters.length;
    return {
      text: characters.slice(begin, end).join(""),
      piece,
      logProb: logprobs.token_logprobs[i],
      top: logprobs.top_logprobs[i] ?? {},
    };
  });
}

// Whether each of `parts` is outside the longest common subsequence with `base`.
export function differences(base, parts) {
  const name = (part) => part.piece ?? part.text.trim();
  const a = base.map(name);
  const b = parts.map(name);
  const differs = b.map(() => true);
  let begin = 0;
  while (begin < a.length && begin < b.length && a[begin] === b[begin]) differs[begin++] = false;
  let tail = 0;
  while (tail < Math.min(a.length, b.length) - begin &&
         a[a.length - 1 - tail] === b[b.length - 1 - tail]) {
    differs[b.length - 1 - tail++] = false;
  }
  const rows = a.length - begin - tail;
  const columns = b.length - begin - tail;
  if (rows * columns > DIFF_CELLS) return differs;
  // length[i][j]: of the subsequence common to the ends that begin at i and j.
  const length = Array.from({ length: rows + 1 }, () => new Uint16Array(columns + 1));
  for (let i = rows - 1; i >= 0; --i) {
    for (let j = columns - 1; j >= 0; --j) {
      length[i][j] = a[begin + i] === b[begin + j]
        ? length[i + 1][j + 1] + 1
        : Math.max(length[i + 1][j], length[i][j + 1]);
    }
  }
  for (let i = 0, j = 0; i < rows && j < columns;) {
    if (a[begin + i] === b[begin + j]) {
      differs[begin + j] = false;
      ++i;
      ++j;
    } else if (length[i + 1][j] >= length[i][j + 1]) {
      ++i;
    } else {
      ++j;
    }
  }
  return differs;
}

// The alternatives of one token, best first, with the token itself.
function alternatives(part) {
  const all = Object.entries(part.top);
  if (!all.some(([piece]) => piece === part.piece)) all.push([part.piece, part.logProb]);
  return all.sort((x, y) => y[1] - x[1]);
}

function inspectorRows(part) {
  return alternatives(part).map(([piece, logProb]) => {
    const chosen = piece === part.piece;
    return element("li", { class: chosen ? "chosen" : null },
      element("code", {}, visible(piece),
        chosen ? element("span", { class: "unseen" }, " (chosen)") : null),
      bar(Math.exp(logProb)),
      element("span", { class: "value" }, percent(Math.exp(logProb))));
  });
}

// A folded table, which is made when it is opened first.
function tokenTable(parts) {
  const details = element("details", {
    ontoggle: () => {
      if (details.children.length === 1) details.append(tokenRows(parts));
    },
  }, element("summary", {}, "Tokens as a table"));
  return details;
}

function tokenRows(parts) {
  const head = element("tr", {}, ...["Token", "p", "ln p"].map((name) =>
    element("th", { scope: "col" }, name)));
  const rows = parts.map((part) => element("tr", {},
    element("td", {}, element("code", {}, visible(part.piece))),
    element("td", { class: "value" }, percent(Math.exp(part.logProb))),
    element("td", { class: "value" }, number(part.logProb, 4))));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tokens" },
    element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}

function tokenSpan(part, differs) {
  const classes = ["token"];
  if (part.text === "") classes.push("bare");
  if (differs) classes.push("differs");
  const span = element("span", { class: classes.join(" ") },
    part.text === "" ? visible(part.piece) : part.text);
  return withVariable(span, "--doubt", (1 - Math.exp(part.logProb)).toFixed(3));
}

function currentText(part, index, total) {
  return `Token ${index + 1} of ${total} \u00b7 ${percent(Math.exp(part.logProb))} \u00b7 ` +
         `ln\u00a0p\u00a0${number(part.logProb, 3)}`;
}

// Nodes for a complete text. `differs`: of each part; null for none. `label` names the text.
export function tokenNodes(parts, differs, label) {
  const scored = parts.length > 0 && parts[0].piece !== undefined;
  if (!scored) {
    return [element("p", { class: "text" }, ...parts.map((part, i) => differs?.[i]
      ? element("span", { class: "differs" }, part.text) : part.text))];
  }
  const spans = parts.map((part, i) => tokenSpan(part, differs?.[i]));
  const caption = element("p", { class: "facts" });
  const list = element("ul", { class: "alternatives" });
  let current = -1;
  const select = (index) => {
    spans[current]?.classList.remove("current");
    current = index;
    spans[current].classList.add("current");
    caption.textContent = currentText(parts[current], current, parts.length);
    list.replaceChildren(...inspectorRows(parts[current]));
  };
  const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
  const text = element("p", {
    class: "text tokens",
    tabindex: 0,
    role: "group",
    "aria-label": `${label}. The arrow keys choose a token.`,
    onkeydown: (event) => {
      if (!(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      select(Math.min(Math.max(current + steps[event.key], 0), parts.length - 1));
    },
    onpointerover: (event) => {
      const index = spans.indexOf(event.target);
      if (index >= 0) select(index);
    },
  }, ...spans);
  // The token of which the model was least sure.
  const worst = parts.reduce((at, part, i) => (part.logProb < parts[at].logProb ? i : at), 0);
  select(worst);
  const inspector = element("div", { class: "inspector", "aria-live": "polite" }, caption, list);
  return [text, inspector, tokenTable(parts)];
}

// The meaning of the colours.
export function legend() {
  return element("p", { class: "legend" },
    "Token probability ", element("span", {}, "100\u200a%"),
    element("span", { class: "scale doubt", "aria-hidden": "true" }),
    element("span", {}, "0\u200a%"));
}
