// Elements and formats. Text becomes part of the page only as text nodes and attribute values.

// Returns a new element. Properties are attributes; functions are listeners ("onclick"), and false,
// null and undefined leave the attribute out. Children are nodes or texts.
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

export function show(node, visible) {
  node.hidden = !visible;
}

// Sets a custom property, by which the style sheet sizes or colours an element.
export function withVariable(node, name, value) {
  node.style.setProperty(name, value);
  return node;
}

// A bar of the length `share`, from 0 to 1. Its value stands beside it as text.
export function bar(share) {
  const length = Number.isFinite(share) ? Math.min(Math.max(share, 0), 1) : 0;
  const meter = element("span", { class: "meter", "aria-hidden": "true" });
  return withVariable(meter, "--share", length);
}

// A number with a true minus sign.
export function number(value, digits) {
  return value.toFixed(digits).replace("-", "\u2212");
}

export function percent(probability) {
  const value = 100 * probability;
  if (value > 0 && value < 0.01) return "<\u200a0.01\u200a%";
  return `${value.toFixed(value < 10 ? 2 : 1)}\u200a%`;
}

export function milliseconds(value) {
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return `${value.toFixed(value < 10 ? 1 : 0)} ms`;
}

// "1 token", "2 tokens".
export function count(value, unit) {
  return `${value} ${unit}${value === 1 ? "" : "s"}`;
}

// Shows tokens of a vocabulary: spaces and line breaks become visible.
export function visible(piece) {
  return piece.replaceAll(" ", "\u2423").replaceAll("\n", "\u21b5").replaceAll("\t", "\u21e5");
}

// The lines of a text that are not empty.
export function linesOf(text) {
  return text.split("\n").filter((line) => line.trim() !== "");
}
