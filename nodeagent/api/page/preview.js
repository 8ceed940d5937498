/* What a plan would do: the agent computes it and touches nothing. */

const LARGEST_PLAN = 64 * 1024; // bytes
const PREVIEW_WITHIN = 60000; // milliseconds; previews wait for each other

function previewCard(gpu, slots) {
  const verdict = VERDICTS[gpu.verdict], isBlocked = gpu.onceFree !== undefined;
  const goal = goalOf(gpu);
  const [now, then] = isBlocked ? ["now", "wanted"] : ["before", "after"];
  const before = boxesBefore(goal);
  const lanes = goal.steps.length ? [[now, before], [then, boxesAfter(goal)]] : [["", before]];
  const ends = [...goal.before, ...goal.after].map((place) => place.start + place.size);
  const width = Math.max(slots.get(gpu.index) || 1, ...ends);
  const steps = goal.steps.map((step) => [stepWords(step) + ": " + step.reason]);
  return element("article", {},
    element("h3", {}, "GPU " + gpu.index + " " + (gpu.name || "") + ": " + verdict.word),
    ends.length ? picture(lanes, width) : "",
    isBlocked ? element("p", {}, "Nothing is done yet. When it is free:") : "",
    steps.length ? element("ol", {}, steps.map((step) => element("li", {}, step))) : "");
}

function previewShown(plan, slots) {
  const { tone, words } = VERDICTS[plan.verdict];
  const { glyph } = SEVERITIES[tone];
  return [
    element("p", {}, mark(glyph, words, "tone-" + tone), " Nothing was touched."),
    problemsList(plan.problems), plan.gpus.map((gpu) => previewCard(gpu, slots)),
  ];
}

/* The answer to a plan, or a sentence that says why there is none. */
async function previewOf(text, configuration, slots) {
  const size = new TextEncoder().encode(text).length;
  if (!text.trim()) return ["Paste a plan first."];
  if (size > LARGEST_PLAN) return [size + " bytes are too many; at most " + LARGEST_PLAN + "."];
  const query = configuration ? "?configuration=" + encodeURIComponent(configuration) : "";
  const request = { method: "POST", body: text };
  let found;
  try {
    const answer = await ask("/v1/plan/preview" + query, request, PREVIEW_WITHIN);
    found = await answer.json();
  } catch (error) {
    return ["The agent does not answer."];
  }
  return found.verdict ? previewShown(found, slots) : ["The agent answers: " + found.error + "."];
}

/* `gpus` gives those of the newest status. */
function servePreview(gpus) {
  byId("preview").addEventListener("click", async () => {
    show("previewed", "Computing.");
    const slots = new Map(gpus().map((gpu) => [gpu.index, gpu.slots]));
    show("previewed", await previewOf(byId("pasted").value, byId("configuration").value, slots));
  });
}
