// JSON and Python texts of a request. The page sends exactly the text that it shows.

// A number as its user wrote it: no digit of a large seed is lost.
export class Literal {
  constructor(text) {
    this.text = text;
  }
}

// What a user wrote into a field for a number. Other text is sent as a string, so that it is the
// server that explains what it expects.
export function numberField(text) {
  const trimmed = text.trim();
  return /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(trimmed) ? new Literal(trimmed) : trimmed;
}

function printed(value, indent, style) {
  if (value instanceof Literal) return value.text;
  if (typeof value === "boolean") return value ? style.yes : style.no;
  if (value === null) return style.none;
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = indent + style.step;
  const list = Array.isArray(value);
  const items = list
    ? value.map((item) => printed(item, inner, style))
    : Object.entries(value).map(([name, item]) =>
        `${JSON.stringify(name)}: ${printed(item, inner, style)}`);
  const [open, close] = list ? "[]" : "{}";
  const line = `${open}${items.join(", ")}${close}`;
  if (indent !== "" && line.length <= 70) return line;
  return `${open}\n${inner}${items.join(`,\n${inner}`)}\n${indent}${close}`;
}

const JSON_STYLE = { step: "  ", yes: "true", no: "false", none: "null" };
const PYTHON_STYLE = { step: "    ", yes: "True", no: "False", none: "None" };

export const toJson = (value) => printed(value, "", JSON_STYLE);
export const toPython = (value) => printed(value, "", PYTHON_STYLE);
