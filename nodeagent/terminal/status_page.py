"""The running agent's picture of the node, drawn from the JSON of its `/v1/status`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nodeagent.terminal.mps_page import daemon_lines, device_words
from nodeagent.terminal.page import (
    BLANK,
    Line,
    Span,
    Tone,
    dim,
    gibibytes,
    indent,
    index_ranges,
    line,
)
from nodeagent.terminal.slices import Cell, drawing

Json = Mapping[str, Any]

_PHASE_TONES = {
    "InSync": Tone.GOOD,
    "Working": Tone.NEW,
    "Blocked": Tone.WARNING,
    "Rejected": Tone.BAD,
    "Failed": Tone.BAD,
    "NoPlan": Tone.PLAIN,
}
_HEADLINE_TONES = {
    "ok": Tone.GOOD,
    "info": Tone.NEW,
    "warning": Tone.WARNING,
    "error": Tone.BAD,
}
_USUAL = "default"
_DIGEST_SHOWN = 19  # columns: "sha256:" and twelve digits


def status_page(status: Json, width: int) -> tuple[Line, ...]:
    """The whole page; keys that are absent are not known and left out."""
    lines = [*_headline(status.get("headline") or {}), *_title(status), BLANK]
    groups: dict[tuple[str, tuple[Line, ...]], list[Json]] = {}
    daemons: Sequence[Json] = status.get("mps", ())
    for gpu in status.get("gpus", ()):
        body = (*_gpu_body(gpu, width - 2), *_mps_lines(gpu, daemons))
        groups.setdefault((str(gpu.get("name", "")), body), []).append(gpu)
    for (_, body), gpus in groups.items():
        lines += [_gpu_title(gpus), *indent(body, 2), BLANK]
    lines += _mps_elsewhere(status.get("gpus", ()), daemons)
    problems = _problem_lines(status.get("problems", ()))
    return (*lines, *problems) if problems else tuple(lines[:-1])


def _headline(headline: Json) -> tuple[Line, ...]:
    if not headline:
        return ()
    tone = _HEADLINE_TONES.get(str(headline.get("severity")), Tone.PLAIN)
    text = line(Span(str(headline.get("text", "")), tone))
    return (text, line(f"  {headline['remedy']}")) if headline.get("remedy") else (text,)


def _phase_tone(status: Json) -> Tone:
    """Never green while something else is wrong, even if the plan is applied."""
    phase = str(status.get("phase", "unknown"))
    severity = (status.get("headline") or {}).get("severity", "ok")
    if phase == "InSync" and severity in ("warning", "error"):
        return Tone.PLAIN
    return _PHASE_TONES.get(phase, Tone.PLAIN)


def _title(status: Json) -> tuple[Line, ...]:
    phase = str(status.get("phase", "unknown"))
    node = Span(f"node {status.get('node', '?')}", Tone.TITLE)
    digest = str(status.get("digest") or "")
    source = status.get("source", "?")
    name = f" ({status['configuration']})" if status.get("configuration") else ""
    plan = f"plan {digest[:_DIGEST_SHOWN]}{name} from {source}" if digest else "no plan"
    seen = f", seen {status['observedAt']}" if status.get("observedAt") else ""
    said = f": {status['message']}" if status.get("message") else ""
    return (
        line(node, "  ", Span(phase, _phase_tone(status)), said),
        line(dim(f"{plan}{seen}")),
        *_cluster_lines(status),
    )


def _cluster_lines(status: Json) -> tuple[Line, ...]:
    """Whether what the agent asks and says reaches the cluster; nothing for a node without one."""
    cluster: Json | None = status.get("cluster")
    if not cluster:
        return ()
    server, reachable = cluster.get("server", "?"), cluster.get("reachable")
    problem: Json = cluster.get("problem") or {}
    since = f" since {cluster['since']}" if cluster.get("since") else ""
    words = f"reachable{since}"
    if not reachable:
        words = f"not {words}" if problem else "not reached yet"
    lines = [line(dim(f"cluster {server}  "), dim(words) if reachable else Span(words, Tone.BAD))]
    if problem:
        lines += [line(Span(f"! {problem.get('message', '')}", Tone.WARNING))]
        lines += [line(f"  {problem['remedy']}")] if problem.get("remedy") else []
    return tuple(lines)


def _gpu_title(gpus: Sequence[Json]) -> Line:
    first = gpus[0]
    name = first.get("name", "")
    if len(gpus) > 1:
        indices = index_ranges(int(gpu["index"]) for gpu in gpus)
        return line(Span(f"GPUs {indices}", Tone.TITLE), f"  {len(gpus)} x {name}")
    place = "  ".join(str(first[key]) for key in ("uuid", "pciBusId") if first.get(key))
    return line(Span(f"GPU {first.get('index', '?')}", Tone.TITLE), f"  {name}", dim(f"  {place}"))


def _gpu_body(gpu: Json, width: int) -> tuple[Line, ...]:
    instances: Sequence[Json] = gpu.get("instances", ())
    slots = int(gpu.get("slots") or 0)
    if "free" not in gpu:  # it does not answer: what is known of it is from before
        cells = [replace(cell, labels=cell.labels[:1], tone=Tone.DIM) for cell in _cells(instances)]
        return (*(drawing([("was", cells)], slots, width) if cells else ()), *_health(gpu))
    cells = _cells(instances) or [Cell(0, slots, (_mode_words(gpu),), Tone.DIM)]
    picture = drawing([("now", cells)], slots, width) if slots else ()
    return (
        *(picture or (line(_mode_words(gpu)),)),
        *_user_lines(gpu),
        *_mode_lines(gpu),
        *_room(gpu),
        *_health(gpu),
    )


def _cells(instances: Sequence[Json]) -> list[Cell]:
    """One box for each GPU instance, whatever compute instances it holds."""
    by_place: dict[tuple[int, int], list[Json]] = {}
    for instance in instances:
        by_place.setdefault((int(instance["start"]), int(instance["size"])), []).append(instance)
    return [_cell(place, devices) for place, devices in by_place.items()]


def _cell(place: tuple[int, int], devices: Sequence[Json]) -> Cell:
    counts = Counter(str(device.get("profile", "?")) for device in devices)
    name = " ".join(profile if n == 1 else f"{n} x {profile}" for profile, n in counts.items())
    half_made = not any(device.get("uuid") for device in devices)
    in_use = any(device.get("inUse") for device in devices)
    state = "half made" if half_made else "in use" if in_use else "idle"
    return Cell(*place, (name, state), Tone.IN_USE if in_use else Tone.STAYS)


def _mode_words(gpu: Json) -> str:
    mig = gpu.get("mig")
    if not mig:
        return "no MIG on this card"
    if mig.get("current") != mig.get("pending"):
        return f"MIG {mig.get('current')}, {mig.get('pending')} after a reset"
    empty = mig.get("current") == "enabled" and not gpu.get("instances")
    return f"MIG {mig.get('current')}{', no instances' if empty else ''}"


def _user_lines(gpu: Json) -> tuple[Line, ...]:
    rows = [_users(f"{i.get('profile')} at {i.get('start')}", i) for i in gpu.get("instances", ())]
    rows.append(_users("GPU", gpu))
    return tuple(row for group in rows for row in group)


def _users(what: str, holder: Json) -> list[Line]:
    memory = holder.get("memory") or {}
    used = f", {gibibytes(int(memory['used']))} used" if memory.get("used") else ""
    lines = [
        line(Span(f"{what}: ", Tone.IN_USE), _user_words(user), dim(used))
        for user in holder.get("users", ())
    ]
    if holder.get("usersUnknown"):
        lines.append(
            line(Span(f"{what}: ", Tone.IN_USE), f"unknown users ({holder['usersUnknown']})")
        )
    return lines


def _user_words(user: Json) -> str:
    pid = user.get("pid")
    command = f" ({user['command']})" if user.get("command") else ""
    pod = user.get("pod") or {}
    where = f" of pod {pod.get('namespace', '')}/{pod['name']}" if pod.get("name") else ""
    unknown = "allocated" if user.get("source") == "kubelet" else "a process of unknown pid"
    return (f"pid {pid}" if pid else unknown) + command + where


def _mps_lines(gpu: Json, daemons: Sequence[Json]) -> tuple[Line, ...]:
    """The daemons of the GPU as a whole and of its MIG devices."""
    names = _device_names(gpu)
    there = (daemon for daemon in daemons if daemon.get("device") in names)
    return tuple(row for d in there for row in daemon_lines(d, names[str(d["device"])]))


def _mps_elsewhere(gpus: Sequence[Json], daemons: Sequence[Json]) -> tuple[Line, ...]:
    """Daemons whose device is not there any more."""
    known = {name for gpu in gpus for name in _device_names(gpu)}
    lost = [daemon for daemon in daemons if daemon.get("device") not in known]
    rows = tuple(row for daemon in lost for row in daemon_lines(daemon, device_words(daemon)))
    return (*rows, BLANK) if rows else ()


def _device_names(gpu: Json) -> dict[str, str]:
    """What each device of the GPU is called below it, by UUID."""
    names = {str(gpu["uuid"]): "the GPU"} if gpu.get("uuid") else {}
    for instance in gpu.get("instances", ()):
        if instance.get("uuid"):
            names[str(instance["uuid"])] = f"{instance.get('profile')} at {instance.get('start')}"
    return names


def _mode_lines(gpu: Json) -> tuple[Line, ...]:
    """The compute mode and time slice of the GPU as a whole, where they are not the usual ones."""
    names = {"computeMode": "compute mode", "timeSlice": "time slice"}
    words = [f"{name} {gpu[key]}" for key, name in names.items() if gpu.get(key, _USUAL) != _USUAL]
    return (line(dim(", ".join(words))),) if words else ()


def _room(gpu: Json) -> tuple[Line, ...]:
    room = gpu.get("free", {}).get("creatable") or {}
    if not room:
        return ()
    return (line(dim("room for " + " or ".join(f"{n} x {name}" for name, n in room.items()))),)


def _health(gpu: Json) -> tuple[Line, ...]:
    health = gpu.get("health") or {}
    status, findings = health.get("status", "healthy"), health.get("findings", ())
    if status == "healthy" and not findings:
        return ()
    well = status == "healthy"
    lines = [line(dim("healthy, though:") if well else Span(f"! {status}", Tone.BAD))]
    for finding in findings:
        what = f"{finding.get('message', '')}{_slices(finding)}".strip()
        evidence = str(finding.get("evidence", ""))
        lines.append(line(f"  {': '.join(text for text in (what, evidence) if text)}"))
        helps = finding.get("advice") or finding.get("suggestedAction", "none")
        if helps != "none":
            lines.append(line(f"    {helps}"))
    return tuple(lines)


def _slices(finding: Json) -> str:
    if "start" not in finding:
        return ""
    first, size = finding["start"], finding.get("size", 1)
    return f" in slice {first}" if size == 1 else f" in slices {first}-{first + size - 1}"


def _problem_lines(problems: Sequence[Json]) -> tuple[Line, ...]:
    lines: list[Line] = []
    for problem in problems:
        place = f"{problem['path']}: " if problem.get("path") else ""
        lines.append(line(Span(f"! {place}{problem.get('message', '')}", Tone.WARNING)))
        if problem.get("remedy"):
            lines.append(line(f"  {problem['remedy']}"))
    return tuple(lines)
