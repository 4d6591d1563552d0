// Making elements. Text goes in as text, never as markup: nothing that a VM or a job is called can become a tag.

const HIDDEN = /[^\P{C}\n]|[\p{Zl}\p{Zp}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\u{1d159}\u{e0100}-\u{e01ef}]/gu;

/** A text with its control characters, and those that turn the reading direction or show nothing, by their numbers: names are others' words. */
export function readable(text) {
  return text.replace(HIDDEN, (char) => {
    const number = char.codePointAt(0).toString(16);
    if (number.length <= 2) return `\\x${number.padStart(2, "0")}`;
    return number.length <= 4 ? `\\u${number.padStart(4, "0")}` : `\\U${number.padStart(8, "0")}`;
  });
}

/** Attributes that are read, not followed. */
const READ = new Set(["title", "aria-label", "placeholder", "alt"]);

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(typeof child === "string" ? readable(child) : child);
  }
  return element;
}

function make(element, attributes) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : READ.has(name) ? readable(String(value)) : String(value));
  }
  return element;
}

/** An element: its tag, its attributes (a function under `onclick` and the like is a listener), its children. */
export function h(tag, attributes, ...children) {
  return append(make(document.createElement(tag), attributes), children);
}

/** The same of SVG. */
export function svg(tag, attributes, ...children) {
  return append(make(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes), children);
}

/** A part of a view with a heading of its own. */
export function section(title, ...children) {
  return h("section", null, h("h2", null, title), children);
}

/** Names with values: rows of [name, what] of which those without a value are left out. */
export function facts(rows) {
  const shown = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl", { class: "facts" }, shown.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

/** A labelled input of a form. `options` of a select are [value, text]. */
export function field(label, attributes, options) {
  const id = `field-${attributes.id ?? attributes.name}`;
  const input = options
    ? h("select", { name: attributes.name, id }, options.map(([value, text]) =>
        h("option", { value, selected: value === attributes.value }, text)))
    : h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...attributes, id });
  return h("div", { class: "field" }, h("label", { for: id }, label), input);
}

/** A form whose fields become the parameters of a view's link; with none of them filled the view says what is missing. */
export function form(path, label, submit, ...fields) {
  const go = (event) => {
    event.preventDefault();
    const all = [...new FormData(event.target)].map(([k, v]) => [k, v.trim()]);
    const given = all.filter(([, value]) => value !== "");
    const project = new URLSearchParams(location.hash.split("?")[1]).get("project");
    if (project && !all.some(([name]) => name === "project")) given.push(["project", project]);
    const link = `#${path}?${new URLSearchParams(given.length ? given : all.slice(0, 1))}`;
    if (link === location.hash) window.dispatchEvent(new Event("hashchange"));
    else location.hash = link;
  };
  return h("form", { "aria-label": label, "data-keep": "", onsubmit: go }, fields, h("button", { type: "submit", class: "go" }, submit));
}
