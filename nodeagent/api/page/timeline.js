/* What happened: folded to what matters, with the steps of a change in it, and a filter. */

/* The kinds by the beginnings of events' types; what is not named is of the agent itself. */
const KINDS = {
  changes: /^(Applied|Restored|Failed|Step|Drift|Changed$|Plan|Driver|Contested|OtherOwner)/,
  blocked: /^(Blocked|Evicted|MpsInUse|Unchecked)/,
  health: /^(Gpu|Xid)/,
  claims: /^(Claim|ChangedForClaim|LessOffered|NotOffered)/,
  MPS: /^Mps/,
  agent: /^/,
};

function kindOf({ type }) {
  return Object.keys(KINDS).find((kind) => KINDS[kind].test(type));
}

function matters(event) {
  return event.severity === "warning" || (!event.routine && event.type !== "Xid")
    || kindOf(event) === "claims";
}

/* An event that ends a change takes the steps that were taken for it. Newest first, as `events`. */
function withSteps(events) {
  const open = new Map(), rows = [];
  for (const event of [...events].reverse()) {
    const steps = open.get(event.gpu) || [];
    if (event.type === "StepDone") {
      open.set(event.gpu, [...steps, event]);
    } else {
      const isChange = event.type === "ChangedForClaim" || kindOf(event) === "changes";
      const ends = event.gpu && isChange && steps.length > 0;
      if (ends) open.delete(event.gpu);
      rows.push(ends ? { ...event, steps } : event);
    }
  }
  // These go on now.
  const left = [...open.values()].flat().map((event) => ({ ...event, routine: false }));
  return [...rows, ...left].sort(byTime);
}

function byTime(one, other) {
  return new Date(other.time) - new Date(one.time) || (other.id || 0) - (one.id || 0);
}

/* What happened to several GPUs at once is one row. */
function withAlike(events) {
  const rows = [], plain = ({ type, message }) => type + message.replace(/^GPU \d+/, "");
  for (const event of events) {
    const last = rows[rows.length - 1];
    const isAlike = last && event.gpu && event.gpu !== last.gpu && plain(event) === plain(last)
      && new Date(last.time) - new Date(event.time) < SAME_CHANGE;
    if (isAlike) last.alike.push(event);
    else rows.push({ ...event, alike: [] });
  }
  return rows;
}

function eventWords(event) {
  const { message, type, reason = "", before = "", after = "", claim = "", steps = [] } = event;
  return [message, type, reason, before, after, claim, ...steps.map((step) => step.message)]
    .join(" ").toLowerCase();
}

/* --- drawing --- */

const FEW_ROWS = 12, MORE_ROWS = 100;
const filter = { text: "", kind: "matters", most: FEW_ROWS };

function isWanted(event, gpu) {
  const { text, kind } = filter;
  const isOfKind = kind === "all" || (kind === "matters" ? matters(event) : kind === kindOf(event));
  return isOfKind && (eventWords(event) + " " + gpu).toLowerCase().includes(text.toLowerCase());
}

function changeCell({ message, reason, count, since, before, after, steps = [], alike = [] }) {
  const again = count > 1 && since ? [" (" + count + " times since ", time(since), ")"] : "";
  const past = withCommands(message, (command) => element("code", {}, command)); // none to copy
  const words = [...past, again];
  const isChange = after && before !== after;
  const more = [
    reason ? element("p", {}, "Why: " + reason) : "",
    isChange ? facts([["before", before || "not known"], ["after", after]]) : "",
    steps.length ? element("ol", {}, steps.map((step) =>
      element("li", {}, time(step.time), " ", step.message))) : "",
    list(alike.map(changeCell), { class: "plain" }),
  ].filter(Boolean);
  if (alike.length) words.push(span("faint", " · and " + plural(alike.length, "other GPU")));
  if (steps.length) {
    words.push(span("faint", " · " + plural(steps.length, "step")));
  }
  return more.length ? folded(words, ...more) : words;
}

/* `events` and what this page saw itself, newest first. */
function drawTimeline(events, gpus) {
  const names = gpuNames(gpus);
  const gpuOf = (event) => names.get(event.gpu) || event.gpu || "";
  const found = withAlike(withSteps(events).filter((event) => isWanted(event, gpuOf(event))));
  const rows = found.slice(0, filter.most).map((event) => ({
    "data-key": (event.since || event.time) + " " + (event.first || event.id || event.gpu),
    cells: [
      time(event.time),
      event.severity === "warning" ? mark("▲", event.type, "tone-warning")
        : mark("·", event.type, ""),
      event.alike.length ? event.alike.length + 1 + " GPUs" : gpuOf(event), changeCell(event),
    ],
  }));
  const rest = found.length - rows.length;
  show("timeline",
    rows.length ? table("What happened, the newest first", ["Time", "What", "GPU", "Message"], rows)
      : element("p", { class: "faint" }, events.length ? "Nothing of that." : "Nothing yet."));
  byId("more").hidden = rest === 0;
  byId("more").textContent = "show " + Math.min(rest, MORE_ROWS) + " more";
}

function serveTimeline() {
  const choose = (chosen) => { Object.assign(filter, chosen); draw(); };
  byId("events-text").addEventListener("input", ({ target }) => choose({ text: target.value }));
  byId("events-kind").addEventListener("change", ({ target }) => choose({ kind: target.value }));
  byId("more").addEventListener("click", () => choose({ most: filter.most + MORE_ROWS }));
}
