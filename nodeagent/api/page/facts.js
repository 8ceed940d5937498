/* What the agent's answers mean, as states and facts. Nothing here touches the document. */

/* --- GPUs and what is on them --- */

/* What is shown of a GPU that does not answer is from before. */
function answers(gpu) {
  return gpu.free !== undefined;
}

const GONE = new Set(["fallenOffBus", "gpuMissing", "gpuLost", "gpuUnavailable"]);

function silentState(gpu) {
  return gpu.health.findings.some((finding) => GONE.has(finding.cause)) ? "lost" : "silent";
}

/* Whether a finding is of this place on its GPU; one without a place is of the whole GPU. */
function hits(finding, place) {
  if (finding.start !== undefined) {
    const end = finding.start + (finding.size || 1);
    return finding.start < place.start + place.size && place.start < end;
  }
  return finding.gi === undefined || finding.gi === place.gi;
}

function isSick(gpu, place) {
  const bad = gpu.health.findings.filter((finding) => finding.severity === "unhealthy");
  return bad.some((finding) => place === undefined || hits(finding, place));
}

/* The devices by where they lie: compute instances share the place of their GPU instance. */
function byPlace(devices) {
  const places = new Map();
  for (const device of devices) {
    const key = device.start + ":" + device.size;
    places.set(key, [...(places.get(key) || []), device]);
  }
  return [...places.values()].sort((one, other) => one[0].start - other[0].start);
}

/* How full memory is, from 0 to 1; undefined while that is not known. */
function fillOf({ used, total } = {}) {
  return used === undefined || !total ? undefined : Math.min(1, used / total);
}

/* Who has it, each name once. */
function namesOf(users = []) {
  return [...new Set(users.map(userName))];
}

function box(devices, states) {
  const { start, size } = devices[0];
  const fills = devices.map((device) => fillOf(device.memory)).filter((fill) => fill !== undefined);
  return {
    start, size, states, name: counted(devices.map((device) => device.profile)),
    users: namesOf(devices.flatMap((device) => device.users || [])),
    fill: fills.length ? Math.max(...fills) : undefined,
  };
}

/* Whether a step takes away some of these devices, which share a place. */
function isGoing(devices, steps) {
  return steps.some((step) => step.kind === "destroyInstance" && step.start === devices[0].start
    && (step.scope === "gpuInstance" || devices.some((device) => device.uuid === step.uuid)));
}

/* What is to be done to a plan's GPU; to a blocked one, once nothing is in the way. */
function goalOf(planned) {
  return planned ? { ...planned, ...planned.onceFree } : { steps: [], after: [] };
}

/* All that is so of devices that share a place; the first gives them their look. While a GPU is
   blocked nothing goes: only what it waits for is marked. */
function statesOf(gpu, devices, goal) {
  if (!answers(gpu)) return [silentState(gpu)];
  const states = [], isUsed = devices.some((device) => device.inUse);
  if (isSick(gpu, devices[0])) states.push("sick");
  if (isGoing(devices, goal.steps)) {
    if (!goal.onceFree) states.push("going");
    else if (isUsed) states.push("blocking");
  }
  if (devices.every((device) => device.uuid === undefined)) states.push("half");
  else states.push(isUsed ? "used" : "idle");
  return states;
}

/* A GPU as it is, with what its goal makes of it. */
function boxesNow(gpu, goal) {
  if (!isDivided(gpu)) {
    const { current, pending } = gpu.mig || {};
    const name = current === pending ? "whole GPU" : modeWords(gpu);
    const of = { users: namesOf(gpu.users), fill: fillOf(gpu.memory), states: wholeStates(gpu) };
    return [{ start: 0, size: 1, name, ...of }];
  }
  return byPlace(gpu.instances).map((devices) => box(devices, statesOf(gpu, devices, goal)));
}

/* The layouts of a plan's GPU: before its steps, and after them. Who uses what would have to go
   is what a blocked one waits for. */
function boxesBefore(planned) {
  return byPlace(planned.before).map((devices) => {
    const use = devices.some((device) => device.inUse) ? "used" : "idle";
    const goes = planned.onceFree && use === "used" ? "blocking" : "going";
    return box(devices, isGoing(devices, planned.steps) ? [goes, use] : [use]);
  });
}

function boxesAfter(planned) {
  return byPlace(planned.after).map((devices) => {
    const isNew = devices.some((device) => !device.uuid && device.inUse === undefined);
    return box(devices, [isNew ? "fresh" : devices.some((one) => one.inUse) ? "used" : "idle"]);
  });
}

/* All that is so of a GPU that is not divided. */
function wholeStates(gpu) {
  if (!answers(gpu)) return [silentState(gpu)];
  const use = gpu.users.length || gpu.usersUnknown ? "used" : "idle"; // not knowing counts as use
  return isSick(gpu) ? ["sick", use] : [use];
}

function isDivided(gpu) {
  return gpu.slots > 0 && (gpu.instances.length > 0 || (gpu.mig || {}).current === "enabled");
}

function stateWords(states) {
  return states.map((state) => STATES[state].word).join(", ");
}

function modeWords(gpu) {
  if (!gpu.mig) return answers(gpu) ? "no MIG" : "mode not known";
  const { current, pending } = gpu.mig;
  return "MIG " + current + (pending === current ? "" : ", " + pending + " after a reset");
}

/* What a GPU's layout is in one line, to notice that it changed; undefined while not known. */
function layoutWords(gpu) {
  if (!answers(gpu)) return undefined;
  if (!isDivided(gpu)) return modeWords(gpu);
  return byPlace(gpu.instances)
    .map((devices) => counted(devices.map((one) => one.profile)) + " at " + devices[0].start)
    .join("; ") || "no instances";
}

/* --- the node --- */

function countsOf(status) {
  const gpus = status.gpus, devices = gpus.filter(answers).flatMap((gpu) => gpu.instances);
  const lost = gpus.filter((gpu) => !answers(gpu)).length;
  const sick = gpus.filter((gpu) => answers(gpu) && isSick(gpu)).length;
  const facts = [["GPUs", [gpus.length, lost && lost + " lost", sick && sick + " sick"]]];
  const divided = gpus.filter((gpu) => answers(gpu) && isDivided(gpu));
  if (divided.length) {
    const used = devices.filter((device) => device.inUse).length;
    const free = divided.reduce((sum, gpu) => sum + gpu.free.slots.length, 0);
    const slots = divided.reduce((sum, gpu) => sum + gpu.slots, 0);
    const idle = devices.length - used;
    facts.push(["MIG devices", [devices.length, used + " in use", idle + " idle"]]);
    facts.push(["Free room", [free + " of " + slots + " memory slices"]]);
  }
  if (status.mps.length) {
    const ready = status.mps.filter((daemon) => daemon.state === "Ready").length;
    const clients = status.mps.reduce((sum, daemon) => sum + daemon.clients.length, 0);
    facts.push(["MPS", [ready + " of " + status.mps.length + " ready", plural(clients, "client")]]);
  }
  if (status.claims) {
    const ready = status.claims.filter((claim) => claim.phase === "Ready").length;
    facts.push(["Claims", [ready + " of " + status.claims.length + " ready"]]);
  }
  return facts.map(([name, parts]) => [name, parts.filter(Boolean).join(", ") || "0"]);
}

/* Whether the GPUs cannot be read at all now, so that all of them is as it was known last. */
function isUnread({ troubles }) {
  return troubles.some(({ code = "", gpu }) => !gpu && code.startsWith("Driver"));
}

const STALE_COLUMNS = 6; // of ten seconds, after which a figure is called old

/* How long nothing was read of a GPU that answers, where that is too long. */
function staleWords(past, interval) {
  if (!past) return "";
  const newest = Math.max(...Object.values(past).map((values) =>
    values.findLastIndex((value) => value !== null)));
  const missing = past.temperature.length - 1 - newest;
  return newest < 0 || missing < STALE_COLUMNS ? ""
    : "figures are " + durationWords(missing * interval * 1000) + " old";
}

/* What needs a person besides what the headline says: the same remedy once for all that have it.
   The first group are those that the headline's remedy mends, too. */
function handsNeeded({ headline, troubles }) {
  const groups = new Map([[headline.remedy || headline.text, []]]);
  for (const trouble of troubles) {
    if (trouble.text === headline.text && trouble.gpu === headline.gpu) continue;
    const key = trouble.remedy || trouble.text;
    groups.set(key, [...(groups.get(key) || []), trouble]);
  }
  return [...groups.values()];
}

/* What the headline is about, with what was read of it. */
function headlineTrouble({ headline, troubles }) {
  return troubles.find((one) => one.text === headline.text && one.gpu === headline.gpu) || headline;
}
