/* The GPUs: each drawn to scale, with its slices, who uses them, and what is wrong with it. */

/* --- the picture --- */

function boxesWords(boxes, slots) {
  const words = boxes.map(({ name, start, size, states }) =>
    name + (slots > 1 ? " at " + sliceWords(start, size) : "") + ", " + stateWords(states));
  return words.join("; ") || "no instances";
}

/* A profile may be broken behind its point: a narrow box has no room for "1g.10gb". */
function profileWords(profile) {
  return profile.split(".").flatMap((part, at) => (at ? [".", element("wbr"), part] : [part]));
}

function lane(name, boxes, slots) {
  const row = element("div", { class: "slots" });
  row.style.gridTemplateColumns = "repeat(" + slots + ", minmax(0, 1fr))";
  for (let slot = 0; slot < slots; slot += 1) {
    const place = element("div", { class: "slot" }, slots > 1 ? String(slot) : "");
    place.style.gridColumn = String(slot + 1);
    row.append(place);
  }
  for (const { name: profile, start, size, states } of boxes) {
    const drawn = element("div", { class: "box is-" + states[0] },
      element("span", { class: "glyph" }, STATES[states[0]].glyph),
      element("span", { class: "name" }, profileWords(profile)),
      element("span", { class: "word" }, stateWords(states)));
    drawn.style.gridColumn = start + 1 + " / span " + size;
    row.append(drawn);
  }
  const look = { class: "lane", "aria-hidden": "true" };
  return element("div", look, name && element("div", { class: "when" }, name), row);
}

/* Boxes over memory slices, one row for each moment; read out as one sentence for each. */
function picture(lanes, slots) {
  const words = lanes.map(([name, boxes]) => (name ? name + ": " : "") + boxesWords(boxes, slots));
  return element("div", { class: "picture", role: "img", "aria-label": words.join(". ") },
    lanes.map(([name, boxes]) => lane(name, boxes, slots)));
}

function gpuPicture(gpu, goal) {
  const now = boxesNow(gpu, goal), slots = isDivided(gpu) ? gpu.slots : 1;
  if (isAway() || !answers(gpu)) return picture([["last known", now]], slots);
  const changes = goal.steps.some((step) => step.kind.endsWith("Instance"));
  if (!isDivided(gpu) || !changes) return picture([["", now]], slots);
  const then = goal.onceFree ? "wanted" : "planned";
  return picture([["now", now], [then, boxesAfter(goal)]], slots);
}

function legend() {
  return list(Object.keys(STATES).map(stateMark), { class: "legend", "aria-label": "Legend" });
}

/* --- what is on it --- */

function usersCell(holder, isKnown, owners) {
  const lines = holder.users.map((user) => {
    const owner = owners.has(user.pid) ? ", user " + owners.get(user.pid) : "";
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

const COLUMNS = ["Device", "State", "Used by", "Memory", "Utilization", "For", "UUID"];

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
    element("span", { class: "whole" }, placeWords(device)),
    states.map(stateMark), usersCell(device, answers(gpu), node.owners), memoryCell(used, total),
    utilizationCell(device), purposeCell(gpu, device, node),
    uuidCell(device, placeWords(device) + " of GPU " + gpu.index),
  ];
}

function deviceTable(gpu, goal, node) {
  const rows = byPlace(gpu.instances).flatMap((devices) => devices.map((device) =>
    deviceRow(gpu, device, statesOf(gpu, [device], goal), node)));
  if (!isDivided(gpu) || gpu.users.length) rows.unshift(wholeRow(gpu, node));
  return rows.length ? table("Devices of GPU " + gpu.index, COLUMNS, rows) : "";
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
    pods ? ", used then by " + pods : "", ". ", prose(finding.advice),
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
  const { nvlink, temperature, power, utilization } = gpu;
  return facts([
    ["UUID", gpu.uuid && copyable(gpu.uuid, "the UUID of GPU " + gpu.index)],
    ["PCI", gpu.pciBusId],
    ["Memory", gpu.memory && gibibytes(gpu.memory.total)],
    ["Mode", modeWords(gpu)],
    ["Utilization", utilization === undefined ? "" : Math.round(utilization) + " %"],
    ["Temperature", temperature === undefined ? "" : temperature + " °C"],
    ["Power", power === undefined ? "" : Math.round(power) + " W"],
    ["Compute mode", unusual(gpu.computeMode)],
    ["Time slice", unusual(gpu.timeSlice)],
    ["NUMA node", gpu.numaNode === undefined ? "" : String(gpu.numaNode)],
    ["NVLink", nvlink && nvlink.active + " of " + nvlink.total + " links up"],
  ], { class: "facts" });
}

function roomWords(gpu) {
  if (isSick(gpu)) return "Nothing new is placed on what is sick.";
  const { creatable, share } = gpu.free;
  const room = Object.entries(creatable).map(([name, count]) => count + " × " + name);
  if (share && share.memory) {
    const threads = share.threads === undefined ? "" : " and " + share.threads + " % of the threads";
    room.push("claims with " + gibibytes(share.memory) + threads);
  }
  return room.length ? "Room for " + room.join(" or ") + "." : "No room for another " + (isDivided(gpu) ? "instance." : "claim.");
}

function gpuCard(gpu, node) {
  const goal = goalOf(node.planned.get(gpu.index));
  const id = "gpu-" + gpu.index, name = "GPU " + gpu.index + " " + (gpu.name || "");
  return element("article", { id, "aria-labelledby": id + "-name" },
    element("h3", { id: id + "-name" }, name + " ", gpuMark(gpu)),
    gpuPicture(gpu, goal),
    answers(gpu) && (isDivided(gpu) || gpu.free.share) ? element("p", { class: "faint" }, roomWords(gpu)) : "",
    list(gpu.health.findings.map((one) => findingItem(one, gpu)), { class: "plain" }),
    deviceTable(gpu, goal, node),
    gpuFacts(gpu));
}

const FEW = 2; // GPUs, whose cards fit a screen

/* More GPUs at a glance, each with the way to its card. */
function overview(gpus, { planned }) {
  if (gpus.length <= FEW) return "";
  return list(gpus.map((gpu) => {
    const { used, total } = gpu.memory || {};
    const boxes = boxesNow(gpu, goalOf(planned.get(gpu.index)));
    return [
      element("a", { href: "#gpu-" + gpu.index }, "GPU " + gpu.index), " ", gpuMark(gpu),
      element("span", { class: "faint" },
        used === undefined || !total ? "" : " " + shareWords(used, total),
        gpu.utilization === undefined ? "" : ", " + Math.round(gpu.utilization) + " %"),
      picture([["", boxes]], isDivided(gpu) ? gpu.slots : 1),
    ];
  }), { class: "overview" });
}

/* `planned` has the plan's GPUs by index, `owners` the users of MPS clients by pid. */
function drawGpus(status, plan) {
  const claims = status.claims || [], daemons = status.mps;
  const clients = daemons.flatMap((daemon) => daemon.clients);
  const owners = new Map(clients.filter((one) => one.user !== undefined)
    .map((client) => [client.pid, client.user]));
  const planned = new Map(plan.gpus.map((gpu) => [gpu.index, gpu]));
  const node = { claims, daemons, planned, owners };
  show("overview", overview(status.gpus, node));
  show("gpus", status.gpus.map((gpu) => gpuCard(gpu, node)));
}
