/* Keeps the page as the agent is: follows its events, asks anew after each and every few seconds
   (who uses what changes without an event), and says so when there is no answer. */

const PERIOD = 10000; // all of these are milliseconds
const HIDDEN_PERIOD = 60000;
const HISTORY_PERIOD = 9000;
const ADVICE_PERIOD = 60000;
const BETWEEN = 500;
const ANSWER_WITHIN = 8000;
const LONGEST_WAIT = 30000;

const page = {
  status: undefined,
  plan: undefined,
  history: undefined,
  advice: undefined,
  asked: {}, // when these two were asked for last
  ahead: 0, // of this browser's clock, the node's
  awaySince: undefined, // the beginning of the first request that was not answered
  failures: 0,
};

/* The answer to a request; fails when there is none in time. */
function ask(path, options = {}, within = ANSWER_WITHIN) {
  return fetch(path, { ...options, signal: AbortSignal.timeout(within) });
}

async function askJson(path) {
  const answer = await ask(path);
  if (!answer.ok) throw new Error(path + " answers " + answer.status);
  const date = Date.parse(answer.headers.get("Date"));
  if (!Number.isNaN(date)) page.ahead = date - Date.now();
  return parsed(await answer.text());
}

/* Names and messages have no character that hides what they say. */
function parsed(text) {
  return JSON.parse(text, (_, value) => (typeof value === "string" ? visible(value) : value));
}

/* What changes slowly (the last minutes do once a column), and the page can do without. */
async function askSlowly(what, period) {
  if (Date.now() - (page.asked[what] || 0) < period) return page[what];
  page.asked[what] = Date.now();
  return askJson("/v1/" + what).catch(() => undefined);
}

/* Grows with each failure, and differs from page to page. */
function backoff(failures) {
  return Math.min(LONGEST_WAIT, 1000 * 2 ** (failures - 1)) * (0.5 + Math.random() / 2);
}

/* --- what changed --- */

const timeline = {
  events: new Map(), // by the first time and id: ids begin anew with each life of the agent
  layouts: new Map(), // of each GPU by UUID, as seen last
  seen: [], // changes that this page saw
};

const MOST_EVENTS = 500, MOST_SEEN = 100;
const SAME_CHANGE = 15000; // milliseconds between a change, its event and this page's seeing it

/* What happens again is one event, as it is now. */
function addEvent(event) {
  const key = (event.since || event.time) + " " + (event.first || event.id);
  timeline.events.delete(key);
  timeline.events.set(key, event);
  for (const key of timeline.events.keys()) {
    if (timeline.events.size <= MOST_EVENTS) break;
    timeline.events.delete(key);
  }
}

/* Notes layouts that are others than before: not all changes, as those for claims, have events. */
function observeLayouts(status) {
  for (const gpu of status.gpus) {
    const after = layoutWords(gpu), before = timeline.layouts.get(gpu.uuid);
    if (after === undefined) continue;
    timeline.layouts.set(gpu.uuid, after);
    if (before === undefined || before === after) continue;
    const what = { type: "Changed", gpu: gpu.uuid, message: "GPU " + gpu.index + " was changed" };
    const change = { time: new Date().toISOString(), before, after, ...what };
    timeline.seen = [change, ...timeline.seen].slice(0, MOST_SEEN);
  }
}

/* Whether an event reports a change that this page saw, too. */
function hasEvent(change, events) {
  return events.some((event) => event.gpu === change.gpu && event.after !== undefined
    && Math.abs(new Date(event.time) - new Date(change.time)) < SAME_CHANGE);
}

function happened() {
  const events = [...timeline.events.values()];
  const seen = timeline.seen.filter((change) => !hasEvent(change, events));
  return [...events, ...seen].sort(byTime);
}

/* --- drawing --- */

function drawConnection() {
  const { awaySince, status } = page;
  document.body.classList.toggle("away", awaySince !== undefined);
  if (awaySince === undefined) {
    show("away");
    return;
  }
  const since = element("strong", {}, "Not answering since " + clockWords(awaySince) + ".");
  const known = status && status.observedAt ? ", of " + timeWords(new Date(status.observedAt)) : "";
  show("away", since, status ? " What stands below is the last known state" + known + "." : "");
}

function draw() {
  const { status, plan, history, advice } = page;
  drawConnection();
  if (!status) return;
  byId("main").hidden = false;
  byId("zone").textContent = ", " + zoneOf(new Date());
  drawHead(status);
  drawAges(status, Date.now() + page.ahead);
  drawHands(status);
  drawGpus(status, plan, history);
  drawMps(status);
  drawClaims(status);
  drawAdvice(advice);
  drawPlan(status, plan);
  drawTimeline(happened(), status.gpus);
}

/* --- asking --- */

const asking = { isRunning: false, timer: undefined, due: Infinity };

/* Asks anew after so long, unless that is to be done earlier anyway. */
function later(milliseconds) {
  const due = Date.now() + milliseconds;
  if (due >= asking.due) return;
  clearTimeout(asking.timer);
  asking.due = due;
  asking.timer = setTimeout(refresh, milliseconds);
}

/* Until the browser painted what is in the HTML, which drawing would delay. Hidden pages are not
   painted. */
const painted = new Promise((done) => {
  if (document.hidden) done();
  else requestAnimationFrame(() => setTimeout(done));
});

async function update() {
  const began = new Date();
  try {
    const answers = [askJson("/v1/status"), askJson("/v1/plan"),
      askSlowly("history", HISTORY_PERIOD), askSlowly("advice", ADVICE_PERIOD)];
    const [status, plan, history, advice] = await Promise.all([...answers, painted]);
    Object.assign(page, { status, plan, history, advice, awaySince: undefined, failures: 0 });
  } catch (error) {
    page.awaySince = page.awaySince || began;
    page.failures += 1;
    return;
  }
  observeLayouts(page.status);
  follow();
}

async function refresh() {
  clearTimeout(asking.timer);
  asking.due = Infinity;
  if (asking.isRunning) {
    later(BETWEEN);
    return;
  }
  asking.isRunning = true;
  try {
    await update();
    draw();
  } finally {
    asking.isRunning = false;
    later(pause());
  }
}

/* How long until the agent is asked again, if nothing happens before. */
function pause() {
  if (page.failures) return backoff(page.failures);
  if (document.hidden) return HIDDEN_PERIOD;
  if (stream.source) return PERIOD;
  return Math.min(PERIOD, Math.max(BETWEEN, stream.notBefore - Date.now()));
}

/* --- following the events --- */

const stream = { source: undefined, failures: 0, notBefore: 0 };

/* Opens the stream unless it is open, or ended a moment ago. Hidden pages have none:
   browsers open few connections to an address, and the agent has few followers. */
function follow() {
  if (stream.source || document.hidden || Date.now() < stream.notBefore) return;
  const source = new EventSource("/v1/events?after=0"); // first those that the agent still has
  stream.source = source;
  source.onopen = () => { stream.failures = 0; };
  source.onmessage = (message) => {
    addEvent(parsed(message.data));
    later(BETWEEN);
  };
  source.onerror = () => {
    endStream();
    stream.failures += 1;
    stream.notBefore = Date.now() + backoff(stream.failures);
    refresh();
  };
}

function endStream() {
  if (stream.source) stream.source.close();
  stream.source = undefined;
}

function start() {
  byId("retry").addEventListener("click", refresh);
  document.addEventListener("visibilitychange", () => (document.hidden ? endStream() : refresh()));
  window.addEventListener("unhandledrejection", ({ reason }) =>
    show("away", "This page could not draw the agent's answer: " + reason + ". Reload it."));
  setInterval(() => {
    if (page.status && !document.hidden) drawAges(page.status, Date.now() + page.ahead);
  }, 1000);
  serveGrid();
  serveTimeline();
  servePreview(() => (page.status ? page.status.gpus : []));
  refresh();
}

start();
