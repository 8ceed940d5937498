"use strict";

/* The words of the page. Nothing here touches the document. */

/* Of a slice or a GPU. Each has a word, a glyph and a pattern of its style: no colour is alone. */
const STATES = {
  used: { word: "in use", glyph: "●" },
  idle: { word: "idle", glyph: "○" },
  fresh: { word: "new", glyph: "+" },
  going: { word: "going", glyph: "×" },
  blocking: { word: "in the way", glyph: "▲" },
  half: { word: "half made", glyph: "◐" },
  sick: { word: "sick", glyph: "!" },
  lost: { word: "lost", glyph: "?" },
  silent: { word: "no answer", glyph: "?" },
  free: { word: "free", glyph: "" },
};

const SEVERITIES = {
  ok: { word: "OK", glyph: "✓" },
  info: { word: "Note", glyph: "i" },
  warning: { word: "Warning", glyph: "▲" },
  error: { word: "Error", glyph: "✖" },
};

/* How a phase, a daemon's state or a claim's phase looks; what is not named here is a warning. */
const TONES = {
  InSync: "ok", Ready: "ok", Working: "info", NoPlan: "info", Starting: "info", Limiting: "info",
  Preparing: "info", Releasing: "info", Rejected: "error", Failed: "error", Fault: "error",
  Unreadable: "error",
};

const VERDICTS = {
  inSync: { tone: "ok", word: "in sync", words: "Nothing to do: the node is as this plan says." },
  applicable: { tone: "info", word: "can be applied", words: "This plan can be applied." },
  blocked: {
    tone: "warning", word: "blocked", words: "This plan is possible, but has to wait.",
  },
  unsatisfiable: {
    tone: "error", word: "cannot be satisfied", words: "These cards cannot be divided so.",
  },
  invalid: { tone: "error", word: "invalid", words: "This is no valid plan." },
};

/* Why clocks are lower, and whether the GPU is slowed down against its will. */
const CLOCK_REASONS = {
  gpu_idle: ["idle", false], clocks_setting: ["set", false], power_cap: ["power cap", false],
  hw_slowdown: ["slowdown", true], sync_boost: ["sync boost", false], sw_thermal: ["heat", true],
  hw_thermal: ["heat (card)", true], hw_power_brake: ["power brake", true],
  display_clocks: ["display", false],
};

/* --- sizes and times --- */

function gibibytes(bytes) {
  return (bytes / 2 ** 30).toFixed(1) + " GiB";
}

/* "4 s", "3 min", "2 h 5 min", "3 d 4 h" */
function durationWords(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000)), minutes = Math.floor(seconds / 60);
  if (minutes < 1) return seconds + " s";
  if (minutes < 60) return minutes + " min";
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return hours + " h " + (minutes % 60) + " min";
  return Math.floor(hours / 24) + " d " + (hours % 24) + " h";
}

/* "9.0 of 30.0 GiB" */
function shareWords(used, total) {
  return gibibytes(used).replace(" GiB", "") + " of " + gibibytes(total);
}

/* "1.2 of 8.0 GiB, 25 %": what a claim uses, and may use, of a GPU that it has beside others. */
function claimShareWords({ memory, used, threads }) {
  const words = used === undefined ? gibibytes(memory) : shareWords(used, memory);
  return words + (threads === undefined ? ", not enforced" : ", " + threads + " %");
}

function plural(count, word) {
  return count + " " + word + (count === 1 ? "" : "s");
}

function twoDigits(number) {
  return String(number).padStart(2, "0");
}

let zones; // made with the first time that is shown: it would delay the first paint

function zoneOf(date) {
  zones ||= new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" });
  return zones.formatToParts(date).find((part) => part.type === "timeZoneName").value;
}

/* "03:04:05 CET", in the browser's zone. */
function clockWords(date) {
  const digits = [date.getHours(), date.getMinutes(), date.getSeconds()].map(twoDigits);
  return digits.join(":") + " " + zoneOf(date);
}

/* "2030-01-02 03:04:05 CET" */
function timeWords(date) {
  const day = [date.getFullYear(), twoDigits(date.getMonth() + 1), twoDigits(date.getDate())];
  return day.join("-") + " " + clockWords(date);
}

/* --- names --- */

/* "3g.40gb", "2 × 1c.3g.40gb" */
function counted(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) || 0) + 1);
  return [...counts].map(([name, count]) => (count > 1 ? count + " × " : "") + name).join(" + ");
}

function sliceWords(start, size) {
  return size > 1 ? "slices " + start + "–" + (start + size - 1) : "slice " + start;
}

function programWords({ command, script }) {
  return [command, script].filter(Boolean).join(" ");
}

function userWords(user) {
  const unknown = user.source === "kubelet" ? "allocated" : "a process of unknown pid";
  const who = user.pid ? "pid " + user.pid : unknown;
  return who + (user.command ? " (" + programWords(user) + ")" : "");
}

/* The shortest that says who it is, where there is little room. */
function userName(user) {
  if (user.pod) return user.pod.name;
  return user.script || user.command || (user.pid ? "pid " + user.pid : "allocated");
}

function podWords(pod) {
  return pod.namespace + "/" + pod.name + (pod.container ? " (" + pod.container + ")" : "");
}

function placeWords({ profile, start, size }) {
  return profile + " at " + sliceWords(start, size);
}

function stepWords(step) {
  const at = step.profile ? placeWords(step) : "";
  const on = at ? " on " + at : "";
  switch (step.kind) {
    case "setMigMode": return (step.mode === "enabled" ? "enable" : "disable") + " MIG mode";
    case "resetGpu": return "reset the GPU";
    case "destroyInstance": return "destroy " + at;
    case "createInstance": return "create " + at;
    case "stopMps": return "stop MPS" + on;
    case "startMps": return (step.runs ? "change the limits of MPS" : "start MPS") + on;
    case "setComputeMode": return "set compute mode " + step.mode + on;
    case "setTimeSlice": return "set the time slice to " + step.timeSlice;
    default: return step.kind + on;
  }
}

/* What a terminal might act on, and what turns the order of letters around, as its number. */
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

function visible(text) {
  return text.replace(HIDDEN, (character) =>
    "\\u" + character.charCodeAt(0).toString(16).padStart(4, "0"));
}

/* What each GPU is called, by UUID; one that never answered has none. */
function gpuNames(gpus) {
  return new Map(gpus.filter((gpu) => gpu.uuid).map((gpu) => [gpu.uuid, "GPU " + gpu.index]));
}

function claimName(claim) {
  return claim.name ? claim.namespace + "/" + claim.name : claim.uid;
}

function daemonPlace(daemon) {
  if (daemon.gpu === undefined) return daemon.device;
  if (daemon.gpus) return daemon.gpus.map((index) => "GPU " + index).join(" + ");
  const part = daemon.profile ? placeWords(daemon) + " of " : "";
  return part + "GPU " + daemon.gpu;
}

/* "03:04:05", of another day than today's with that. */
function shortTimeWords(date) {
  const clock = clockWords(date).split(" ")[0];
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? clock : timeWords(date).slice(0, 10) + " " + clock;
}

/* --- remedies --- */

/* The steps as a shell takes them. What stands behind "or" is another way: a comment. */
function stepsText(steps) {
  return steps.flatMap(({ words, command, after, isOther }) => [
    ...(words ? ["# " + words] : []),
    (isOther ? "# " : "") + command + (after ? "  # " + after : ""),
  ]).join("\n");
}

/* What stands behind a command: of it, such as "on the node", and of what comes next. */
function cutWords(words) {
  const [, first, rest] = /^(.*?)[,;.]+(?=\s|$)(.*)$/s.exec(words) || [words, "", words];
  const after = first.replace(/^[\s)]+/, "").trim();
  return /^(and|or|then|)$/i.test(after) ? ["", words] : [after, rest];
}

/* The commands of a remedy, each with the words before it and behind it; then its other words. */
function stepsOf(remedy) {
  const parts = remedy.split("`"), steps = [];
  let rest = parts[0];
  for (let at = 1; at < parts.length - 1; at += 2) {
    const words = rest.replace(/^[\s,;.)]+|[\s(]+$/g, ""), [after, next] = cutWords(parts[at + 1]);
    steps.push({ words: /^(and|then)$/i.test(words) ? "" : words, command: parts[at], after,
      isOther: /(^|[,;.] *)or\b[^.;]*$/i.test(words) });
    rest = next;
  }
  return [steps, rest.replace(/^[\s,;.)]+/, "")];
}
