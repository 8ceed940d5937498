/* Pictures of GPUs: their slices to scale, each filled as its memory is. */

function boxesWords(boxes, slots) {
  const words = boxes.map(({ name, start, size, states, users, fill }) => [
    name + (slots > 1 ? " at " + sliceWords(start, size) : ""), stateWords(states),
    fill === undefined ? "" : Math.round(100 * fill) + " % of the memory used",
    (users || []).length ? "by " + users.join(", ") : "",
  ].filter(Boolean).join(", "));
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
    const place = element("div", { class: "slot" });
    place.style.gridColumn = String(slot + 1);
    row.append(place);
  }
  for (const one of boxes) {
    const state = STATES[one.states[0]], level = span("fill");
    level.style.width = Math.round(100 * (one.fill || 0)) + "%";
    const look = { class: "box is-" + one.states[0], title: boxesWords([one], slots) };
    const drawn = element("div", look, level, span("name",
        span("sign", state.glyph), profileWords(one.name)),
      span("users", (one.users || []).join(", ")));
    drawn.style.gridColumn = one.start + 1 + " / span " + one.size;
    row.append(drawn);
  }
  return element("div", { class: "lane", "aria-hidden": "true" },
    name && element("div", { class: "when" }, name), row);
}

/* Boxes over memory slices, one row for each moment; read out as one sentence for each. */
function picture(lanes, slots) {
  const words = lanes.map(([name, boxes]) => (name ? name + ": " : "") + boxesWords(boxes, slots));
  return element("div", { class: "picture", role: "img", "aria-label": words.join(". ") },
    lanes.map(([name, boxes]) => lane(lanes.length > 1 ? name : "", boxes, slots)));
}

/* What there is to draw of a GPU: rows of boxes, each with the moment that it is of. */
function lanesOf(gpu, goal) {
  const now = boxesNow(gpu, goal);
  if (isAway() || !answers(gpu)) return [["last known", now]];
  if (!goal.steps.some((step) => step.kind.endsWith("Instance"))) return [["", now]];
  return [["now", now], [goal.onceFree ? "wanted" : "planned", boxesAfter(goal)]];
}

function gpuPicture(gpu, goal) {
  const isParted = isDivided(gpu) || goal.after.some((place) => place.size);
  return picture(lanesOf(gpu, goal), isParted && gpu.slots ? gpu.slots : 1);
}

/* The states that are on the screen, and no others. */
function legend(gpus, planned) {
  const shown = new Set();
  for (const gpu of gpus) {
    const boxes = lanesOf(gpu, goalOf(planned.get(gpu.index))).flatMap(([, some]) => some);
    boxes.forEach((one) => shown.add(one.states[0]));
    if (answers(gpu) && isDivided(gpu) && gpu.free.slots.length) shown.add("free");
  }
  const known = Object.keys(STATES).filter((state) => shown.has(state));
  return list(known.map(stateMark), { class: "legend", "aria-label": "Legend" });
}

/* --- the last minutes --- */

const COLUMNS_KEPT = 90, LINE_HEIGHT = 16;

/* The values until now as a line, with gaps where nothing was read; `most` is at its top. */
function sparkline(values, most, what) {
  const known = (values || []).filter((value) => value !== null);
  if (!known.length) return "";
  const top = most || Math.max(...known) || 1;
  const height = (value) => 15 - 14 * Math.min(1, Math.max(0, value / top));
  let line = "", area = "", x = COLUMNS_KEPT - values.length, isDown = false;
  for (const value of values) {
    const y = value === null ? undefined : height(value).toFixed(1);
    if (isDown && y === undefined) area += "V" + LINE_HEIGHT + "Z";
    if (y !== undefined) {
      line += (isDown ? "V" : "M" + x + " ") + y + "H" + (x + 1);
      area += (isDown ? "" : "M" + x + " " + LINE_HEIGHT) + "V" + y + "H" + (x + 1);
    }
    isDown = y !== undefined;
    x += 1;
  }
  if (isDown) area += "V" + LINE_HEIGHT + "Z";
  const label = what + " of the last 15 minutes: " + Math.round(Math.min(...known)) + " to "
    + Math.round(Math.max(...known));
  return drawing("svg", { class: "spark", viewBox: "0 0 " + COLUMNS_KEPT + " " + LINE_HEIGHT,
    preserveAspectRatio: "none", role: "img", "aria-label": label },
  drawing("path", { class: "area", d: area }), drawing("path", { class: "trace", d: line }));
}
