/* What stands around the GPUs: the headline, what needs a hand, MPS, claims, the plan, changes. */

/* --- the head of the page --- */

/* Where the plan is done but something else is wrong, nothing looks well. */
function phaseMark({ phase, headline }) {
  const isWell = headline.severity === "ok" || headline.severity === "info";
  return phase === "InSync" && !isWell ? nowMark("✓", phase, "tone-plain") : toneMark(phase);
}

function clusterCell({ server, reachable, problem, since }) {
  const words = reachable ? " reachable" : problem ? " not reachable" : " not reached yet";
  return [server + words, since ? [" since ", time(since)] : ""];
}

function drawHead(status) {
  const { severity, text, remedy, gpu, code } = status.headline;
  const { glyph, word } = SEVERITIES[severity];
  const now = mark(glyph, word + ":", "tone-" + severity);
  show("headline", isAway() ? mark("?", "Last known:", "tone-away") : now, " ", text);
  const shown = status.gpus.find((one) => one.uuid !== undefined && one.uuid === gpu);
  const { message, phase, problems } = status;
  const isSaid = (text + " " + phase).toLowerCase().includes(message.toLowerCase())
    || problems.some((problem) => message.startsWith(problem.message)); // each is said below
  const isBad = severity === "warning" || severity === "error";
  const link = shown && element("a", { href: "#gpu-" + shown.index }, "See GPU " + shown.index);
  show("remedy", prose(remedy), link ? [" ", link, "."] : "",
    isBad && code ? prose(" More: `nodeagent explain " + code + "`") : "");
  byId("node").textContent = status.node;
  document.title = (isAway() ? "not answering" : word) + ": " + status.node;
  show("counts", facts([
    ["Plan", [phaseMark(status), isSaid ? "" : " " + message]],
    ...countsOf(status),
    ["Driver", status.driverVersion],
    ["Cluster", status.cluster && clusterCell(status.cluster)],
    ["Observed", status.observedAt && time(status.observedAt)],
  ]));
}

function problemItem({ where, code, path, message, evidence, remedy }) {
  const isNamed = !where || message.includes(where);
  return [isNamed ? "" : element("strong", {}, where + ": "), path ? path + ": " : "",
    message, evidence ? ": " + evidence : "", " ",
    code ? element("code", { class: "code" }, code) : "",
    remedy ? element("div", { class: "remedy" }, prose(remedy)) : ""];
}

const MOST_HANDS = 5; // that are shown unfolded, so that the GPUs stay near

function drawHands(status) {
  const hands = handsNeeded(status), rest = hands.slice(MOST_HANDS);
  const more = element("summary", {}, "and " + rest.length + " more");
  show("hands", problemsList(hands.slice(0, MOST_HANDS)),
    rest.length ? element("details", {}, more, problemsList(rest)) : "");
}

/* --- MPS --- */

function threadsWords(percent) {
  return percent === undefined ? "all" : percent + " %";
}

function limitWords(bytes) {
  return bytes === undefined ? "all" : gibibytes(bytes);
}

function sharesTable(daemon, where) {
  const rows = Object.entries(daemon.shares || {}).map(([name, share]) => {
    const clients = daemon.clients.filter((client) => client.share === name).length;
    const count = share.count === undefined ? "any number" : String(share.count);
    return [name, count, String(clients), limitWords(share.memory), threadsWords(share.threads)];
  });
  const columns = ["Share", "Slots", "Clients", "Memory each", "Threads each"];
  return rows.length ? table("Shares of MPS on " + where, columns, rows) : "";
}

function clientMemory({ used, limit }) {
  if (used === undefined) return limit === undefined ? "not known" : "limit " + gibibytes(limit);
  return limit === undefined ? gibibytes(used) + ", no limit" : memoryCell(used, limit);
}

function clientsTable(daemon, where) {
  const rows = daemon.clients.map((client) => [
    userWords(client), client.user === undefined ? "not known" : String(client.user),
    client.pod ? podWords(client.pod) : "none", client.slot || client.share || "none",
    clientMemory(client.memory || {}), threadsWords(client.threads),
    list((client.findings || []).map((text) => [nowMark("▲", text, "tone-warning")])) || "none",
  ]);
  const columns = ["Client", "User", "Pod", "Share", "Memory", "Threads", "What is wrong"];
  return rows.length ? table("Clients of MPS on " + where, columns, rows) : "";
}

/* A daemon may be Ready and take no new clients all the same. */
function daemonMark({ state, trouble }, gpu) {
  return trouble ? nowMark("▲", state, "tone-warning") : markOn(gpu ? [gpu] : [], state);
}

function daemonCard(daemon, gpu) {
  const where = daemonPlace(daemon), { server } = daemon;
  const troubles = [daemon.state === "Ready" ? "" : daemon.why, daemon.trouble].filter(Boolean);
  const waiting = (daemon.waiting || []).map((client) =>
    userWords(client) + " of user " + client.user + " waits");
  return element("article", { "aria-label": "MPS on " + where },
    element("h3", {}, "MPS on " + where + " ", daemonMark(daemon, gpu), gpuMark(gpu)),
    list([...troubles, ...waiting].map((text) => [nowMark("▲", text, "tone-warning")])),
    list((daemon.lastLines || []).map((text) => [element("code", {}, text)])),
    facts([
      ["Since", daemon.since && time(daemon.since)],
      ["Pid", daemon.pid === undefined ? "" : String(daemon.pid)],
      ["User", daemon.user === undefined ? "" : String(daemon.user)],
      ["Server", server && server.status + ", pid " + server.pid],
      ["Over the limit", daemon.enforce],
      ["Restarts", String(daemon.restarts)],
      ["Pipes", daemon.pipeDirectory && copyable(daemon.pipeDirectory, "the pipe directory")],
    ], { class: "facts" }),
    sharesTable(daemon, where),
    clientsTable(daemon, where) || element("p", { class: "faint" }, "No clients."));
}

function drawMps(status) {
  show("mps", status.mps.map((daemon) =>
    daemonCard(daemon, status.gpus.find((gpu) => gpu.index === daemon.gpu))));
}

/* --- claims --- */

function drawClaims(status) {
  const names = gpuNames(status.gpus);
  const gpuOf = (device) => status.gpus.find((gpu) => gpu.uuid === device.gpu);
  const deviceWords = (device) => {
    const share = device.share && "share (" + claimShareWords(device.share) + ")";
    const together = device.daemon ? " (MPS of " + device.daemon.length + " GPUs)" : "";
    const parts = [device.profile && placeWords(device), share].filter(Boolean);
    const what = (parts.join(", ") || device.device) + together;
    return [what + " of " + (names.get(device.gpu) || device.gpu) + " ", gpuMark(gpuOf(device))];
  };
  const rows = (status.claims || []).map((claim) => [
    claimName(claim), markOn(claim.devices.map(gpuOf), claim.phase),
    list(claim.pods.map(podWords)) || "none",
    list(claim.devices.map(deviceWords)) || "none yet",
    claim.since ? time(claim.since) : "not known",
    list([...(claim.refusal ? [claim.refusal] : []), ...claim.problems].map(problemItem)) || "none",
  ]);
  const columns = ["Claim", "State", "Pods", "Devices", "Since", "What is wrong"];
  show("claims", rows.length ? table("Claims of pods on this node", columns, rows) : "");
}

/* --- the plan --- */

function stepsTable(gpus, caption) {
  const rows = gpus.flatMap((gpu) => goalOf(gpu).steps.map((step) =>
    ["GPU " + gpu.index, stepWords(step), step.reason]));
  return rows.length ? table(caption, ["GPU", "Step", "Why"], rows) : "";
}

function problemsList(problems) {
  return list(problems.map(problemItem), { class: "plain" });
}

function drawPlan(status, plan) {
  const { rejected } = status;
  const steps = [
    stepsTable(plan.gpus.filter((gpu) => !gpu.onceFree), "Steps that remain"),
    stepsTable(plan.gpus.filter((gpu) => gpu.onceFree), "Steps once nothing is in the way"),
  ].filter(Boolean);
  const none = status.digest ? element("p", { class: "faint" }, "No steps to take now.") : "";
  show("plan",
    facts([
      ["Source", status.source],
      ["Configuration", status.configuration],
      ["In force", status.digest ? copyable(status.digest, "the digest") : "no plan"],
      ["Refused", rejected && (rejected.digest || "the newest plan")],
    ], { class: "facts" }),
    rejected ? problemsList(rejected.problems) : "", steps.length ? steps : none);
}

/* --- what changed --- */

const MOST_ROWS = 100;

function changeCell({ message, reason, count, since, before, after }) {
  const again = count ? [" (" + count + " times since ", time(since), ")"] : "";
  const past = withCommands(message, (command) => element("code", {}, command)); // none to copy
  const words = [...past, reason ? " (why: " + reason + ")" : "", again];
  if (!after || before === after) return words;
  const layouts = [["before", before || "not known"], ["after", after]];
  return [...words, facts(layouts, { class: "change" })];
}

/* `events` and what this page saw itself, newest first; what is routine only while there is room. */
function drawTimeline(events, gpus) {
  const names = gpuNames(gpus);
  const whole = (text) => element("span", { class: "whole" }, text);
  const shown = events.length > MOST_ROWS ? events.filter(({ routine }) => !routine) : events;
  const rows = shown.slice(0, MOST_ROWS).map((event) => [
    time(event.time), whole(event.type),
    names.has(event.gpu) ? whole(names.get(event.gpu)) : event.gpu || "none", changeCell(event),
  ]);
  const columns = ["Time", "What", "GPU", "Message"];
  show("timeline", rows.length ? table("What happened, the newest first", columns, rows) : "");
}
