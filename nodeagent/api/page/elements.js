/* Elements of the document. What comes from outside becomes text or an attribute, never markup. */

const byId = (id) => document.getElementById(id);

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat(3).filter((child) => child !== undefined && child !== ""));
  return made;
}

/* Attributes that are undefined are left out, and so are children that are undefined or "". */
function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

const SVG = byId("svg").content.firstElementChild.namespaceURI;

function drawing(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function span(look, ...children) {
  return element("span", { class: look }, ...children);
}

/* --- changing what is there --- */

/* A style is set by property: the policy allows no attribute for it. */
const STYLES = ["gridColumn", "gridTemplateColumns", "width"];

/* Makes what is there like `fresh` without replacing it, so that focus and selection stay. What a
   person unfolded stays so. */
function morph(old, fresh) {
  if (old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return undefined;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !["style", "open"].includes(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && name !== "style") old.setAttribute(name, value);
  }
  for (const property of STYLES) {
    const value = fresh.style[property];
    if (old.style[property] !== value) old.style[property] = value;
  }
  return morphChildren(old, [...fresh.childNodes]);
}

/* What is the same before and after: what has the same key, else the next of the same kind. */
function sameAs(node) {
  return node.dataset && node.dataset.key !== undefined ? "=" + node.dataset.key : node.nodeName;
}

/* Nothing that stays is moved unless the order changed: it would lose the focus. */
function morphChildren(parent, fresh) {
  const olds = new Map();
  for (const node of parent.childNodes) {
    olds.set(sameAs(node), [...(olds.get(sameAs(node)) || []), node]);
  }
  const pairs = fresh.map((node) => [(olds.get(sameAs(node)) || []).shift(), node]);
  for (const node of [...olds.values()].flat()) node.remove();
  let place = parent.firstChild;
  for (const [old, node] of pairs) {
    if (old && old === place) place = place.nextSibling;
    else parent.insertBefore(old || node, place);
    if (old) morph(old, node);
  }
}

/* Shows these nodes in the element of this id, and the section around it only if there are any. */
function show(id, ...children) {
  const nodes = [...element("div", {}, ...children).childNodes];
  morphChildren(byId(id), nodes);
  const section = byId(id).closest("section");
  if (section) section.hidden = nodes.length === 0;
}

/* --- lists and tables --- */

function list(items, attributes = {}) {
  if (!items.length) return "";
  return element("ul", attributes, items.map((item) => element("li", {}, item)));
}

/* A row of a table is its cells, or has them as `cells`, with attributes of its own. Roles are
   given since the style lays tables out anew on narrow screens. */
function table(caption, columns, rows) {
  const heads = columns.map((name) => element("th", { scope: "col", role: "columnheader" }, name));
  const cell = (content, at) => (at === 0
    ? element("th", { scope: "row", role: "rowheader" }, content)
    : element("td", { role: "cell", "data-label": columns[at] }, content));
  const lines = rows.map((row) => {
    const { cells, ...attributes } = Array.isArray(row) ? { cells: row } : row;
    return element("tr", { role: "row", ...attributes }, cells.map(cell));
  });
  return element("table", { role: "table" },
    element("caption", {}, caption),
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, heads)),
    element("tbody", { role: "rowgroup" }, lines));
}

/* Names and values; a value that is "" is not known, and left out with its name. */
function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== undefined && value !== "");
  if (!known.length) return "";
  return element("dl", { class: "facts" }, known.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

function folded(summary, ...children) {
  return element("details", {}, element("summary", {}, summary), ...children);
}

/* --- words with a glyph --- */

/* A glyph that is read out by its word. */
function mark(glyph, word, look) {
  return span("mark " + look,
    element("span", { class: "glyph", "aria-hidden": "true" }, glyph), " ", word);
}

/* Whether the agent does not answer, so that what is shown is from before. */
function isAway() {
  return document.body.classList.contains("away");
}

/* Of what the agent says: while it does not answer, the last known, without its colour. */
function nowMark(glyph, word, look) {
  return isAway() ? mark(glyph, "last known: " + word, "tone-away") : mark(glyph, word, look);
}

function stateMark(state) {
  return nowMark(STATES[state].glyph, STATES[state].word, "is-" + state);
}

function toneMark(word) {
  const tone = TONES[word] || "warning";
  return nowMark(SEVERITIES[tone].glyph, word, "tone-" + tone);
}

function warned(text) {
  return nowMark("▲", text, "tone-warning");
}

function time(text) {
  const date = new Date(text);
  return element("time", { datetime: text, title: timeWords(date) }, shortTimeWords(date));
}

/* A bar beside its words, which say the same. */
function bar(ratio, words) {
  const level = Math.round(100 * Math.min(Math.max(ratio, 0), 1));
  const drawn = drawing("svg",
    { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    drawing("rect", { class: "rail", width: 100, height: 8 }),
    drawing("rect", { class: "level", width: level, height: 8 }));
  return [drawn, span("figure", words)];
}

/* --- commands, and copying --- */

function copyButton(text, what, words = "copy") {
  const button = { type: "button", class: "copy", "data-copy": text, "aria-label": "copy " + what };
  return element("button", button, words);
}

function copyable(text, what) {
  return span("copyable", element("code", {}, text), " ", copyButton(text, what));
}

/* A text of the agent, with `show` of its commands, which stand between backticks. */
function withCommands(text, show) {
  return text.split("`").map((part, at) => (at % 2 ? show(part) : part));
}

/* A sentence whose command can be copied; several commands as numbered steps, to be copied at
   once. */
function remedyBlock(text) {
  const sentence = text.slice(0, 1).toUpperCase() + text.slice(1);
  const parts = sentence.split("`"), [steps, end] = stepsOf(sentence);
  if (!steps.length) return element("p", { class: "remedy" }, sentence);
  if (steps.length === 1) {
    return element("p", { class: "remedy" }, parts[0], copyable(parts[1], parts[1]), parts[2]);
  }
  return element("div", { class: "remedy steps" },
    element("ol", {}, steps.map(({ words, command, after }) =>
      element("li", {}, words && words + " ", element("code", {}, command), after && " " + after))),
    end && element("p", {}, end),
    copyButton(stepsText(steps), "all, from " + steps[0].command, "copy all"));
}

let noteEnds;

/* Says something in passing, also to a screen reader. */
function note(text) {
  byId("note").textContent = text;
  clearTimeout(noteEnds);
  noteEnds = setTimeout(() => { byId("note").textContent = ""; }, 4000);
}

/* Browsers give the clipboard only to pages of a secure origin; this way is open to the others. */
function copiedAsTyped(text) {
  const held = element("textarea", { class: "skip", "aria-hidden": "true", tabindex: "-1" });
  const before = document.activeElement;
  held.value = text;
  document.body.append(held);
  held.select();
  const isDone = document.execCommand("copy");
  held.remove();
  before.focus();
  return isDone;
}

async function copy(button) {
  const text = button.dataset.copy;
  try {
    await navigator.clipboard.writeText(text);
    note("Copied.");
  } catch (error) {
    note(copiedAsTyped(text) ? "Copied." : "This browser does not let the page copy.");
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-copy]");
  if (button) copy(button);
});
