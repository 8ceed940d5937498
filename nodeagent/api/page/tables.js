/* MPS, claims and the plan: one table each. */

/* --- MPS --- */

function threadsWords(percent) {
  return percent === undefined ? "all" : percent + " %";
}

function clientMemory({ used, limit }) {
  if (used === undefined) return limit === undefined ? "not known" : "limit " + gibibytes(limit);
  return limit === undefined ? gibibytes(used) + ", no limit" : memoryCell(used, limit);
}

/* A daemon may be Ready and take no new clients all the same. */
function daemonMark({ state, trouble }, gpu) {
  return trouble ? nowMark("▲", state, "tone-warning") : markOn(gpu ? [gpu] : [], state);
}

/* "small: 2 of 4, each 8.0 GiB, 15 %" */
function shareItems(daemon) {
  return Object.entries(daemon.shares || {}).map(([name, { count, memory, threads }]) => {
    const clients = daemon.clients.filter((client) => client.share === name).length;
    const limits = [memory === undefined ? "" : gibibytes(memory),
      threads === undefined ? "" : threads + "\u00a0%"].filter(Boolean).join(", ");
    return name + ": " + clients + (count === undefined ? "" : " of " + count)
      + (limits ? ", each " + limits : "");
  });
}

function daemonRow(daemon, gpu) {
  const troubles = [daemon.state === "Ready" ? "" : daemon.why, daemon.trouble].filter(Boolean);
  return { class: "first", "data-key": daemon.device, cells: [
    "MPS on " + daemonPlace(daemon),
    [daemonMark(daemon, gpu), " ", gpuMark(gpu),
      daemon.since ? [" since ", time(daemon.since)] : ""],
    daemon.user === undefined ? "" : String(daemon.user), "",
    list(shareItems(daemon)) || "any number", "", "",
    list(troubles.map((text) => [warned(text)])),
  ] };
}

function clientRow(daemon) {
  return (client) => ({ "data-key": daemon.device + " " + client.pid, cells: [
    userWords(client), nowMark("●", "client", "tone-plain"),
    client.user === undefined ? "not known" : String(client.user),
    client.pod ? podWords(client.pod) : "", client.slot || client.share || "none",
    clientMemory(client.memory || {}), threadsWords(client.threads),
    list((client.findings || []).map((text) => [warned(text)])),
  ] });
}

function waitingRow(daemon) {
  return (client) => ({ "data-key": daemon.device + " waits " + client.pid, cells: [
    userWords(client), warned("waits"), String(client.user), "", "", "", "",
    "the server is another user's",
  ] });
}

const MPS_COLUMNS = [
  "Daemon, client", "State", "User", "Pod", "Share", "Memory", "Threads", "What is wrong",
];

const MOST_CLIENTS = 10; // of a daemon, and claims, that have a row of their own

/* What is wrong first, and how many there are beside the first ones. */
function firstOnes(all, isWrong) {
  const ordered = [...all.filter(isWrong), ...all.filter((one) => !isWrong(one))];
  return [ordered.slice(0, MOST_CLIENTS), ordered.slice(MOST_CLIENTS)];
}

function clientRows(daemon) {
  const [first, rest] = firstOnes(daemon.clients, (client) => (client.findings || []).length > 0);
  const rows = first.map(clientRow(daemon));
  if (!rest.length) return rows;
  const names = rest.map((client) => [userWords(client), client.slot ? ", " + client.slot : ""]);
  return [...rows, [folded(plural(rest.length, "more client"), list(names))]];
}

function drawMps(status) {
  const rows = status.mps.flatMap((daemon) => [
    daemonRow(daemon, status.gpus.find((gpu) => gpu.index === daemon.gpu)),
    ...clientRows(daemon), ...(daemon.waiting || []).map(waitingRow(daemon)),
  ]);
  show("mps", rows.length ? table("MPS daemons, each with its clients", MPS_COLUMNS, rows) : "");
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
  const claimRow = (claim) => ({ "data-key": claim.uid, cells: [
    claimName(claim), markOn(claim.devices.map(gpuOf), claim.phase),
    list(claim.pods.map(podWords)) || "none",
    list(claim.devices.map(deviceWords)) || "none yet",
    claim.since ? time(claim.since) : "not known",
    list([...(claim.refusal ? [claim.refusal] : []), ...claim.problems].map(withoutRemedy)),
  ] });
  const [first, rest] = firstOnes(status.claims || [], (claim) =>
    claim.refusal || claim.problems.length > 0 || claim.phase !== "Ready");
  const columns = ["Claim", "State", "Pods", "Devices", "Since", "What is wrong"];
  const some = (words, claims) => table(words, columns, claims.map(claimRow));
  show("claims", first.length ? some("Claims of pods on this node", first) : "",
    rest.length ? folded(plural(rest.length, "more claim"), some("The other claims", rest)) : "");
}

/* --- which slice would do --- */

const ADVISED = {
  smaller: "smaller", larger: "larger", keep: "keep", notEnough: "not enough seen yet",
};

function adviceRow(one) {
  const workload = [one.namespace, one.workload].filter(Boolean).join("/");
  const aside = one.container || (one.namespace ? "" : one.kind);
  const name = workload + (aside ? " (" + aside + ")" : "");
  const threads = one.threads === undefined ? "" : ", " + one.threads + " %";
  const size = one.memory === undefined ? "" : " of " + gibibytes(one.memory) + threads;
  const advised = one.advised ? ": " + one.advised + size : "";
  const frees = one.freesPart ? ", frees " + Math.round(100 * one.freesPart) + " % of a GPU" : "";
  return { "data-key": [name, one.model, one.device, one.granted].join(" "), cells: [
    name, one.device + ", " + gibibytes(one.granted), durationWords(1000 * one.held),
    ADVISED[one.verdict] + advised + frees, list(one.why),
  ] };
}

const MOST_ADVICE = 5, MOST_FOLDED = 50; // that have a row, and that have one once unfolded

function drawAdvice({ advice = [] } = {}) {
  const first = advice.filter((one) => one.verdict === "smaller" || one.verdict === "larger")
    .slice(0, MOST_ADVICE);
  const rest = advice.filter((one) => !first.includes(one));
  const columns = ["Holder", "Has", "Held", "Advice", "Why"];
  const some = (words, ones) => table(words, columns, ones.map(adviceRow));
  const all = rest.length > MOST_FOLDED
    ? element("p", {}, "All: ", element("a", { href: "/v1/advice" }, "/v1/advice")) : "";
  show("advice", first.length ? some("Which slice or share would do for whom", first) : "",
    rest.length ? folded(plural(rest.length, first.length ? "more holder" : "holder"),
      some("The other holders", rest.slice(0, MOST_FOLDED)), all) : "");
}

/* --- the plan --- */

function stepsTable(gpus, caption) {
  const rows = gpus.flatMap((gpu) => goalOf(gpu).steps.map((step) =>
    ["GPU " + gpu.index, stepWords(step), step.reason]));
  const words = plural(rows.length, "step") + " " + caption;
  return rows.length ? folded(words, table(words, ["GPU", "Step", "Why"], rows)) : "";
}

function drawPlan(status, plan) {
  const { rejected } = status;
  const steps = [
    stepsTable(plan.gpus.filter((gpu) => !gpu.onceFree), "to take"),
    stepsTable(plan.gpus.filter((gpu) => gpu.onceFree), "once nothing is in the way"),
  ].filter(Boolean);
  const none = status.digest ? element("p", { class: "faint" }, "No steps to take now.") : "";
  show("plan",
    facts([
      ["Source", status.source],
      ["Configuration", status.configuration],
      ["In force", status.digest ? copyable(status.digest, "the digest") : "no plan"],
      ["Refused", rejected && (rejected.digest || "the newest plan")],
    ]),
    rejected ? list(rejected.problems.map(withoutRemedy), { class: "plain" }) : "",
    steps.length ? steps : none);
}
