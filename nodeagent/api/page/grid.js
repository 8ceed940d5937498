/* The GPUs as one grid: a row each, whose columns line up, and all details on demand. */

const opened = new Set(); // the indices of the GPUs whose details are shown

const GRID = [
  "GPU", "Memory slices", "Use", "Memory", "Temperature", "Power", "SM clock", "Errors",
];

function figureCell(at, words, line = "") {
  return element("td", { role: "cell", class: "at-" + at, "data-label": GRID[at] },
    span("figure", words), line);
}

/* "64 / 87 °C": a value and its limit, as far as they are known. */
function against(value, limit, unit, digits = 0) {
  if (value === undefined) return "";
  const shown = value.toFixed(digits);
  return shown + (limit === undefined ? "" : " / " + limit.toFixed(digits)) + " " + unit;
}

function clockCell({ smClock, memoryClock, clockReasons = [] }) {
  const reasons = clockReasons.map((word) => CLOCK_REASONS[word] || [word, true]);
  const known = memoryClock === undefined ? undefined : "memory clock " + memoryClock + " MHz";
  return element("td", { role: "cell", class: "at-6", "data-label": GRID[6], title: known },
    span("figure", smClock === undefined ? "" : smClock + " MHz"),
    reasons.map(([word, isSlowed]) => span("below",
      isSlowed ? warned(word) : word)));
}

/* XIDs by number, and ECC errors: corrected and not corrected. */
function errorsCell({ xids, eccCorrected, eccUncorrected }) {
  const seen = Object.entries(xids || {});
  const words = seen.map(([xid, count]) => xid + (count > 1 ? " ×" + count : "")).join(", ");
  const counts = [eccCorrected, eccUncorrected].map((count) => (count === undefined ? "?" : count));
  const isRead = eccCorrected !== undefined || eccUncorrected !== undefined;
  const title = "ECC errors since the driver was loaded: corrected / not corrected";
  return element("td", { role: "cell", class: "at-7", "data-label": GRID[7], title },
    seen.length ? span("figure", warned("XID " + words))
      : xids && span("figure", "no XID"),
    isRead ? span("below",
      eccUncorrected ? warned("ECC " + counts.join(" / ")) : "ECC " + counts.join(" / ")) : "");
}

function figures(gpu, { gpus = {}, interval } = {}) {
  const past = gpus[gpu.uuid] || {};
  const { utilization, memory = {}, temperature, slowdownTemperature, power, powerLimit } = gpu;
  const gib = (bytes) => (bytes === undefined ? undefined : bytes / 2 ** 30);
  const stale = staleWords(gpus[gpu.uuid], interval);
  return [
    figureCell(2, [against(utilization, undefined, "%"), stale && span("below", warned(stale))],
      sparkline(past.utilization, 100, "percent of use")),
    figureCell(3, against(gib(memory.used), gib(memory.total), "GiB", 1),
      sparkline((past.memoryUsed || []).map((one) => (one === null ? null : one / 2 ** 30)),
        gib(memory.total), "GiB")),
    figureCell(4, against(temperature, slowdownTemperature, "°C"),
      sparkline(past.temperature, slowdownTemperature, "degrees")),
    figureCell(5, against(power, powerLimit, "W"), sparkline(past.power, powerLimit, "watts")),
    clockCell(gpu), errorsCell(gpu),
  ];
}

/* In place of the figures of a GPU that does not answer: what is known of that. */
function silence(gpu) {
  const found = gpu.health.findings.find(({ cause, check }) =>
    GONE.has(cause) || check === "gpuAccess");
  return element("td", { role: "cell", class: "at-silence", colspan: 6 },
    gpuMark(gpu), found && found.since ? [" since ", time(found.since)] : "",
    ". The slices are as they were known last.",
    found ? element("span", { class: "below clip", title: found.evidence }, found.evidence) : "");
}

function gpuRow(gpu, node) {
  const isOpen = opened.has(gpu.index), id = "gpu-" + gpu.index;
  const toggle = { type: "button", class: "toggle", "data-gpu": gpu.index, "aria-expanded": isOpen,
    "aria-controls": isOpen ? id + "-details" : undefined };
  const goal = goalOf(node.planned.get(gpu.index));
  const row = element("tr", { role: "row", class: "gpu" },
    element("th", { role: "rowheader", scope: "row", class: "at-0" },
      element("button", toggle, element("span", { class: "glyph", "aria-hidden": "true" },
        isOpen ? "▼" : "►"), " GPU " + gpu.index),
      node.names.size > 1 && gpu.name ? span("below", gpu.name) : "",
      answers(gpu) ? span("below", gpuMark(gpu)) : ""),
    element("td", { role: "cell", class: "at-1", "data-label": GRID[1] }, gpuPicture(gpu, goal)),
    answers(gpu) ? figures(gpu, node.history) : silence(gpu));
  const details = isOpen ? element("tr", { role: "row", class: "details", id: id + "-details" },
    element("td", { role: "cell", colspan: GRID.length }, gpuDetails(gpu, goal, node))) : "";
  return element("tbody", { role: "rowgroup", "data-key": id, id }, row, details);
}

/* "8 × NVIDIA H100 80GB HBM3" */
function modelWords(gpus) {
  return counted(gpus.map((gpu) => gpu.name || "GPU of unknown model"));
}

/* A column of which nothing is known has no room; the cells of GPUs that answer are its. */
function hideEmpty(head, cells) {
  if (!cells.length || cells.some((cell) => cell.textContent || cell.querySelector("svg"))) return;
  [head, ...cells].forEach((cell) => { cell.hidden = true; });
}

/* `planned` has the plan's GPUs by index, `owners` the users of MPS clients by pid. */
function drawGpus(status, plan, history) {
  const { gpus } = status, daemons = status.mps, claims = status.claims || [];
  const clients = daemons.flatMap((daemon) => daemon.clients);
  const owners = new Map(clients.filter((one) => one.user !== undefined)
    .map((client) => [client.pid, client.user]));
  const planned = new Map(plan.gpus.map((gpu) => [gpu.index, gpu]));
  const names = new Set(gpus.map((gpu) => gpu.name).filter(Boolean));
  const said = new Set([status.headline, ...status.troubles].map((trouble) => trouble.remedy));
  const node = { claims, daemons, planned, owners, names, history, said };
  const isOld = isAway() || isUnread(status);
  document.body.classList.toggle("unread", isUnread(status));
  show("models", modelWords(gpus), " ", isOld ? mark("▲", "as known last", "tone-warning") : "");
  show("legend", isOld ? list([mark("?", "last known", "is-silent")], { class: "legend" })
    : legend(gpus, planned));
  const rows = gpus.map((gpu) => gpuRow(gpu, node));
  const heads = GRID.map((name, at) =>
    element("th", { scope: "col", role: "columnheader", class: "at-" + at }, name));
  GRID.forEach((_, at) => hideEmpty(heads[at],
    rows.flatMap((row) => [...row.querySelectorAll(".gpu > .at-" + at)])));
  const grid = { class: "grid", role: "table", "aria-labelledby": "gpus-title" };
  show("gpus", gpus.length ? element("table", grid,
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, heads)),
    rows) : "");
}

/* --- opening and closing --- */

function toggleGpu(index, isOpen = !opened.has(index)) {
  opened[isOpen ? "add" : "delete"](index);
  draw();
}

function serveGrid() {
  byId("gpus").addEventListener("click", ({ target }) => {
    const row = target.closest("tr.gpu"), isOther = target.closest("a, button:not(.toggle)");
    if (!row || isOther || (!target.closest(".toggle") && String(getSelection()))) return;
    toggleGpu(Number(row.querySelector(".toggle").dataset.gpu));
  });
  byId("gpus").addEventListener("keydown", (event) => {
    const body = event.target.closest("tbody[id]");
    if (event.key !== "Escape" || !body) return;
    const button = body.querySelector(".toggle");
    button.focus();
    toggleGpu(Number(button.dataset.gpu), false);
  });
  document.addEventListener("click", ({ target }) => { // "See GPU 3"
    const link = target.closest("a[href^='#gpu-']");
    if (link) toggleGpu(Number(link.hash.slice("#gpu-".length)), true);
  });
}
