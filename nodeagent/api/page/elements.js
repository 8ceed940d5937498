/* Elements of the document. What comes from outside becomes text or an attribute, never markup. */

const byId = (id) => document.getElementById(id);

/* Attributes that are undefined are left out, and so are children that are undefined or "". */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat(2).filter((child) => child !== undefined && child !== ""));
  return made;
}

/* Makes what is there like `fresh` without replacing it, so that focus and selection stay. A style
   is set by property: the policy allows no attribute for it. What a person unfolded stays so. */
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
  for (const property of ["gridColumn", "gridTemplateColumns"]) {
    const value = fresh.style[property];
    if (old.style[property] !== value) old.style[property] = value;
  }
  return morphChildren(old, [...fresh.childNodes]);
}

function morphChildren(parent, fresh) {
  const old = [...parent.childNodes];
  fresh.forEach((node, at) => (at < old.length ? morph(old[at], node) : parent.append(node)));
  old.slice(fresh.length).forEach((node) => node.remove());
}

/* Shows these nodes in the element of this id, and the section around it only if there are any. */
function show(id, ...children) {
  const nodes = [...element("div", {}, ...children).childNodes];
  morphChildren(byId(id), nodes);
  const section = byId(id).closest("section");
  if (section) section.hidden = nodes.length === 0;
}

function list(items, attributes = {}) {
  if (!items.length) return "";
  return element("ul", attributes, items.map((item) => element("li", {}, item)));
}

/* Roles are given since the style lays tables out anew on narrow screens. */
function table(caption, columns, rows) {
  const heads = columns.map((name) => element("th", { scope: "col", role: "columnheader" }, name));
  const cell = (content, at) => (at === 0
    ? element("th", { scope: "row", role: "rowheader" }, content)
    : element("td", { role: "cell", "data-label": columns[at] }, content));
  const lines = rows.map((cells) => element("tr", { role: "row" }, cells.map(cell)));
  return element("table", { role: "table" },
    element("caption", {}, caption),
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, heads)),
    element("tbody", { role: "rowgroup" }, lines));
}

/* Names and values; a value that is "" is not known, and left out with its name. */
function facts(pairs, attributes = {}) {
  const known = pairs.filter(([, value]) => value !== undefined && value !== "");
  if (!known.length) return "";
  return element("dl", attributes, known.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

/* A glyph that is read out by its word. */
function mark(glyph, word, look) {
  return element("span", { class: "mark " + look },
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

function copyable(text, what) {
  const label = "copy " + what;
  const button = { type: "button", class: "copy", "data-copy": text, "aria-label": label };
  return element("span", { class: "copyable" },
    element("code", {}, text), " ", element("button", button, "copy"));
}

/* A text of the agent, with `show` of its commands, which stand between backticks. */
function withCommands(text, show) {
  return text.split("`").map((part, at) => (at % 2 ? show(part) : part));
}

/* A sentence whose commands can be copied. */
function prose(text = "") {
  const sentence = text.slice(0, 1).toUpperCase() + text.slice(1);
  return withCommands(sentence, (command) => copyable(command, command));
}

function time(text) {
  const date = new Date(text);
  return element("time", { datetime: text, title: text }, timeWords(date));
}

/* A bar beside its words, which say the same. */
function bar(ratio, words) {
  const drawn = byId("bar").content.firstElementChild.cloneNode(true);
  const percent = Math.round(100 * Math.min(Math.max(ratio, 0), 1));
  drawn.querySelector(".level").setAttribute("width", percent);
  return [drawn, element("span", { class: "figure" }, words)];
}

/* --- copying --- */

let noteEnds;

/* Says something in passing, also to a screen reader. */
function note(text) {
  byId("note").textContent = text;
  clearTimeout(noteEnds);
  noteEnds = setTimeout(() => { byId("note").textContent = ""; }, 4000);
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    note("Copied.");
  } catch (error) { // browsers give the clipboard only to pages of a secure origin
    getSelection().selectAllChildren(button.parentElement.querySelector("code"));
    note("Selected; copy it with Ctrl+C.");
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-copy]");
  if (button) copy(button);
});
