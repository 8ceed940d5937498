/* All that is known of one GPU: its devices, who uses them, its MPS daemons, and what is wrong. */

/* --- what is on it --- */

function usersCell(holder, isKnown, owners) {
  const lines = holder.users.map((user) => {
    const uid = user.user === undefined ? owners.get(user.pid) : user.user;
    const owner = uid === undefined ? "" : ", user " + uid;
    const pod = user.pod ? ", pod " + podWords(user.pod) : "";
    return userWords(user) + owner + pod + (user.memory ? ", " + gibibytes(user.memory.used) : "");
  });
  if (holder.usersUnknown) lines.push("not known: " + holder.usersUnknown + " (counts as in use)");
  if (!lines.length) return isKnown ? "none" : "not known";
  return list(lines);
}

function memoryCell(used, total) {
  if (used === undefined || !total) return "not known";
  return bar(used / total, shareWords(used, total));
}

function utilizationCell({ utilization }) {
  if (utilization === undefined) return "not known";
  return bar(utilization / 100, Math.round(utilization) + " %");
}

/* The claims and the MPS daemon that a device is for. */
function purposeCell(gpu, device, { claims, daemons }) {
  const isIts = (one) => one.gpu === gpu.uuid
    && (device === undefined ? !one.profile : one.profile && one.start === device.start);
  const words = claims.filter((claim) => claim.devices.some(isIts))
    .map((claim) => "claim " + claimName(claim));
  const { uuid } = device === undefined ? gpu : device;
  const daemon = daemons.find((one) => (one.devices || [one.device]).includes(uuid));
  if (daemon) words.push(["MPS: ", daemonMark(daemon, gpu)]);
  return list(words) || "none";
}

const DEVICE_COLUMNS = ["Device", "State", "Used by", "Memory", "Utilization", "For", "UUID"];

function uuidCell({ uuid }, what) {
  return uuid ? copyable(uuid, "the UUID of " + what) : "none yet";
}

function wholeRow(gpu, node) {
  const { used, total } = gpu.memory || {};
  return [
    "whole GPU", wholeStates(gpu).map(stateMark), usersCell(gpu, answers(gpu), node.owners),
    memoryCell(used, total), utilizationCell(gpu), purposeCell(gpu, undefined, node),
    uuidCell(gpu, "GPU " + gpu.index),
  ];
}

function deviceRow(gpu, device, states, node) {
  const { used, total } = device.memory || {};
  return [
    span("whole", placeWords(device)),
    states.map(stateMark), usersCell(device, answers(gpu), node.owners), memoryCell(used, total),
    utilizationCell(device), purposeCell(gpu, device, node),
    uuidCell(device, placeWords(device) + " of GPU " + gpu.index),
  ];
}

function deviceTable(gpu, goal, node) {
  const rows = byPlace(gpu.instances).flatMap((devices) => devices.map((device) =>
    deviceRow(gpu, device, statesOf(gpu, [device], goal), node)));
  if (!isDivided(gpu) || gpu.users.length) rows.unshift(wholeRow(gpu, node));
  return rows.length ? table("Devices of GPU " + gpu.index, DEVICE_COLUMNS, rows) : "";
}

/* --- what is wrong with it, and what it is --- */

const HEALTH = {
  healthy: ["i", "healthy", "tone-info"], degraded: ["▲", "degraded", "tone-warning"],
  unknown: ["?", "health not known", "tone-warning"], unhealthy: ["!", "sick", "is-sick"],
};

/* One word for the same: what is wrong with a lost GPU is that it is lost. */
function findingMark(finding, gpu) {
  const isLoss = GONE.has(finding.cause) && !answers(gpu);
  return isLoss ? stateMark(silentState(gpu)) : nowMark(...HEALTH[finding.severity]);
}

function findingItem(finding, gpu) {
  const { start, size = 1 } = finding;
  const place = start === undefined ? "" : " in " + sliceWords(start, size);
  const pods = (finding.pods || []).map(podWords).join(", ");
  return [
    findingMark(finding, gpu),
    " GPU " + gpu.index + " " + finding.message + place + ": " + finding.evidence,
    finding.since ? [", since ", time(finding.since)] : "",
    finding.count > 1 ? ", seen " + finding.count + " times" : "",
    pods ? ", used then by " + pods : "", ".",
  ];
}

/* Nothing is said of a GPU that is well (whether it is, the headline says), or is not there. */
function gpuMark(gpu) {
  if (!gpu) return "";
  if (!answers(gpu)) return stateMark(silentState(gpu));
  const { status } = gpu.health;
  return status === "healthy" ? "" : nowMark(...HEALTH[status]);
}

/* How something is that lies on these GPUs: it does not look well while one of them is not. */
function markOn(gpus, word) {
  const isWell = gpus.every((gpu) => gpu && gpuMark(gpu) === "");
  return TONES[word] === "ok" && !isWell ? nowMark("✓", word, "tone-plain") : toneMark(word);
}

function unusual(value) {
  return value === "default" ? "" : value;
}

function gpuFacts(gpu) {
  const { nvlink } = gpu;
  return facts([
    ["UUID", gpu.uuid && copyable(gpu.uuid, "the UUID of GPU " + gpu.index)],
    ["Name", gpu.name],
    ["PCI", gpu.pciBusId],
    ["Memory", gpu.memory && gibibytes(gpu.memory.total)],
    ["Mode", modeWords(gpu)],
    ["Memory clock", gpu.memoryClock === undefined ? "" : gpu.memoryClock + " MHz"],
    ["Compute mode", unusual(gpu.computeMode)],
    ["Time slice", unusual(gpu.timeSlice)],
    ["NUMA node", gpu.numaNode === undefined ? "" : String(gpu.numaNode)],
    ["NVLink", nvlink && nvlink.active + " of " + nvlink.total + " links up"],
  ]);
}

function roomWords(gpu) {
  if (isSick(gpu)) return "Nothing new is placed on what is sick.";
  const { creatable, share } = gpu.free;
  const room = Object.entries(creatable).map(([name, count]) => count + " × " + name);
  if (share && share.memory) {
    const { memory, threads } = share;
    const more = threads === undefined ? "" : " and " + threads + " % of the threads";
    room.push("claims with " + gibibytes(memory) + more);
  }
  if (room.length) return "Room for " + room.join(" or ") + ".";
  return "No room for another " + (isDivided(gpu) ? "instance." : "claim.");
}

/* What a daemon is, beside what the table of all of them says. */
function mpsDetails(daemon) {
  const { server } = daemon;
  return [
    facts([
      ["MPS", daemonPlace(daemon)],
      ["Pid", daemon.pid === undefined ? "" : String(daemon.pid)],
      ["Server", server && server.status + ", pid " + server.pid],
      ["Over the limit", daemon.enforce],
      ["Restarts", String(daemon.restarts)],
      ["Pipes", daemon.pipeDirectory && copyable(daemon.pipeDirectory, "the pipe directory")],
    ]),
    list((daemon.lastLines || []).map((text) => [element("code", {}, text)])),
  ];
}

function isOn(gpu) {
  return (daemon) => daemon.gpu === gpu.index || (daemon.gpus || []).includes(gpu.index);
}

function gpuDetails(gpu, goal, node) {
  const hasRoom = answers(gpu) && (isDivided(gpu) || gpu.free.share);
  const advice = [...new Set(gpu.health.findings.map((one) => one.advice))]
    .filter((text) => text && !node.said.has(text)); // what is said above is not said again
  return [
    list(gpu.health.findings.map((one) => findingItem(one, gpu)), { class: "plain" }),
    advice.map(remedyBlock),
    deviceTable(gpu, goal, node),
    hasRoom ? element("p", { class: "faint" }, roomWords(gpu)) : "",
    node.daemons.filter(isOn(gpu)).map(mpsDetails),
    gpuFacts(gpu),
  ];
}
