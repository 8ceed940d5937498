/* The node's line, and what needs a hand. */

/* Where the plan is done but something else is wrong, nothing looks well. */
function phaseMark({ phase, headline }) {
  const isWell = headline.severity === "ok" || headline.severity === "info";
  return phase === "InSync" && !isWell ? nowMark("✓", phase, "tone-plain") : toneMark(phase);
}

function clusterCell({ server, reachable, problem, since }) {
  const words = reachable ? " reachable" : problem ? " not reachable" : " not reached yet";
  return [server + words, since ? [" since ", time(since)] : ""];
}

const OLD = 180000; // milliseconds; the GPUs are looked at each minute, or as it is set

/* Since when something is, which grows each second; `now` is the node's. */
function drawAges(status, now) {
  const { observedAt, startedAt, version } = status;
  const seen = observedAt && now - new Date(observedAt);
  const isOld = observedAt && (isAway() || isUnread(status) || seen > OLD);
  const ago = observedAt ? "looked at " + durationWords(seen) + " ago" : "not looked at yet";
  const words = "GPUs " + ago;
  show("age", isOld ? mark("▲", words, "tone-warning") : words,
    " · nodeagent " + version,
    startedAt ? ", up " + durationWords(now - new Date(startedAt)) : "");
}

function codeWords(code) {
  return code ? element("code", { class: "code", title: "nodeagent explain " + code }, code) : "";
}

/* A problem in one line, with what was read. */
function troubleLine({ severity, text, evidence, path, code }) {
  const { glyph, word } = SEVERITIES[severity];
  return [nowMark(glyph, word + ":", "tone-" + severity), " ", text,
    evidence ? " Read: " + evidence + "." : "",
    path && !text.includes(path) ? " In the plan: " + path + "." : "", " ", codeWords(code)];
}

function drawHead(status) {
  const { severity, text, remedy, gpu } = status.headline;
  const { glyph, word } = SEVERITIES[severity], { evidence, code } = headlineTrouble(status);
  const now = mark(glyph, word + ":", "tone-" + severity);
  show("headline", isAway() ? mark("?", "Last known:", "tone-away") : now, " ", text);
  const shown = status.gpus.find((one) => one.uuid !== undefined && one.uuid === gpu);
  const explain = "nodeagent explain " + code;
  const link = shown
    ? [" ", element("a", { href: "#gpu-" + shown.index }, "See GPU " + shown.index)] : "";
  const isBad = severity === "warning" || severity === "error";
  const [same] = handsNeeded(status), lines = list(same.map(troubleLine), { class: "plain" });
  show("remedy",
    isBad && (evidence || link)
      ? element("p", {}, evidence && "Read: " + evidence + ".", link) : "",
    same.length > 1 ? folded("and " + same.length + " more with this remedy", lines) : lines,
    remedy ? remedyBlock(remedy) : "",
    isBad && code ? element("p", {}, "More: ", copyable(explain, explain)) : "");
  byId("node").textContent = status.node;
  document.title = (isAway() ? "not answering" : word) + ": " + status.node;
  const { message, phase, problems } = status;
  const isSaid = (text + " " + phase).toLowerCase().includes(message.toLowerCase())
    || problems.some((problem) => message.startsWith(problem.message)); // each is said below
  show("counts", facts([
    ["Plan", [phaseMark(status), isSaid ? "" : ": " + message]],
    ...countsOf(status),
    ["Driver", status.driverVersion],
    ["Cluster", status.cluster && clusterCell(status.cluster)],
  ]));
}

/* A problem of a plan or of a claim. */
function problemItem({ where, path, message, evidence, remedy, code }) {
  const isNamed = !where || message.includes(where);
  return [isNamed ? "" : element("strong", {}, where + ": "), path ? path + ": " : "",
    message, evidence ? ": " + evidence : "", " ", codeWords(code),
    remedy ? remedyBlock(remedy) : ""];
}

/* What to do about it is said where all that needs a hand is. */
function withoutRemedy(problem) {
  return problemItem({ ...problem, remedy: "" });
}

function problemsList(problems) {
  return list(problems.map(problemItem), { class: "plain" });
}

const MOST_HANDS = 5; // that are shown at once, so that the GPUs stay near

/* Those that one remedy mends, with that on demand. */
function hand(troubles) {
  const lines = troubles.map((one) => span("line", troubleLine(one)));
  const [{ remedy, text }] = troubles, key = "hand " + text;
  return element("li", { "data-key": key },
    remedy ? folded(lines, remedyBlock(remedy)) : lines);
}

function drawHands(status) {
  const [, ...groups] = handsNeeded(status);
  const some = (items) => (items.length ? element("ul", { class: "plain" }, items.map(hand)) : "");
  const rest = groups.slice(MOST_HANDS);
  show("hands", some(groups.slice(0, MOST_HANDS)),
    rest.length ? folded("and " + rest.length + " more", some(rest)) : "");
}
