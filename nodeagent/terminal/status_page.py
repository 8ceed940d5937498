"""The running agent's picture of the node, drawn from the JSON of its `/v1/status`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nodeagent.terminal.claims_page import (
    claim_lines,
    claims_without_device,
    less_offered_lines,
)
from nodeagent.terminal.mps_page import daemon_lines, daemon_place_words, pod_words, process_words
from nodeagent.terminal.page import (
    BLANK,
    GpuTitle,
    Line,
    Span,
    Tone,
    counted,
    dim,
    gibibytes,
    gpu_blocks,
    line,
    remark,
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
    gpus: Sequence[Json] = status.get("gpus", ())
    daemons: Sequence[Json] = status.get("mps", ())
    claims: Sequence[Json] = status.get("claims", ())
    lines = [
        *_headline(status.get("headline") or {}),
        *_title(status),
        BLANK,
        *gpu_blocks(
            (
                _gpu_title(gpu),
                (
                    *_gpu_body(gpu, width - 2),
                    *claim_lines(claims, str(gpu.get("uuid"))),
                    *_less_offered_lines(gpu, status),
                    *_mps_lines(gpu, daemons),
                ),
            )
            for gpu in gpus
        ),
        *_mps_elsewhere(gpus, daemons),
        *_claims_elsewhere(claims),
    ]
    problems = [row for problem in status.get("problems", ()) for row in _problem(problem)]
    end = [*problems, *_explained(status)]
    return (*lines, *end) if end else tuple(lines[:-1])


def _explained(status: Json) -> tuple[Line, ...]:
    """The command that explains all codes of what is shown, once; nothing when all is well."""
    headline: Json = status.get("headline") or {}
    first = headline.get("code") if headline.get("severity") in ("warning", "error") else None
    codes = [first, *(problem.get("code") for problem in status.get("problems", ()))]
    known = dict.fromkeys(str(code) for code in codes if code)
    return (line(dim(f"more: nodeagent explain {' '.join(known)}")),) if known else ()


def _problem(problem: Json) -> tuple[Line, ...]:
    message, remedy = str(problem.get("message", "")), str(problem.get("remedy", ""))
    return remark(message, remedy, path=str(problem.get("path", "")))


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
    seen = dim(words) if reachable else Span(words, Tone.BAD)
    return (line(dim(f"cluster {server}  "), seen), *(_problem(problem) if problem else ()))


def _gpu_title(gpu: Json) -> GpuTitle:
    ids = "  ".join(str(gpu[key]) for key in ("uuid", "pciBusId") if gpu.get(key))
    return GpuTitle(int(gpu["index"]), str(gpu.get("name", "")), ids)


def _gpu_body(gpu: Json, width: int) -> tuple[Line, ...]:
    instances: Sequence[Json] = gpu.get("instances", ())
    slots = int(gpu.get("slots") or 0)
    if "free" not in gpu:  # it does not answer: what is known of it is from before
        cells = [c._replace(labels=c.labels[:1], tone=Tone.DIM) for c in _cells(instances)]
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
    name = counted(str(device.get("profile", "?")) for device in devices)
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


def _user_lines(gpu: Json) -> Iterator[Line]:
    for instance in gpu.get("instances", ()):
        yield from _users(_device_name(instance), instance)
    yield from _users("GPU", gpu)


def _users(what: str, holder: Json) -> Iterator[Line]:
    memory = holder.get("memory") or {}
    used = f", {gibibytes(int(memory['used']))} used" if memory.get("used") else ""
    device = Span(f"{what}: ", Tone.IN_USE)
    for user in holder.get("users", ()):
        yield line(device, _user_words(user), dim(used))
    if holder.get("usersUnknown"):
        yield line(device, f"unknown users ({holder['usersUnknown']})")


def _user_words(user: Json) -> str:
    pod = f" of pod {pod_words(user)}" if pod_words(user) else ""
    if user.get("pid"):
        return f"pid {process_words(user)}{pod}"
    unknown = "allocated" if user.get("source") == "kubelet" else "a process of unknown pid"
    command = f" ({user['command']})" if user.get("command") else ""
    return f"{unknown}{command}{pod}"


def _mps_lines(gpu: Json, daemons: Sequence[Json]) -> tuple[Line, ...]:
    """The daemons of the GPU as a whole and of its MIG devices."""
    names = _device_names(gpu)
    there = (daemon for daemon in daemons if daemon.get("device") in names)
    return tuple(row for d in there for row in daemon_lines(d, names[str(d["device"])]))


def _mps_elsewhere(gpus: Sequence[Json], daemons: Sequence[Json]) -> tuple[Line, ...]:
    """Daemons whose device is not there any more."""
    known = {name for gpu in gpus for name in _device_names(gpu)}
    lost = [daemon for daemon in daemons if daemon.get("device") not in known]
    rows = tuple(row for daemon in lost for row in daemon_lines(daemon, daemon_place_words(daemon)))
    return (*rows, BLANK) if rows else ()


def _claims_elsewhere(claims: Sequence[Json]) -> tuple[Line, ...]:
    """Claims that have nothing yet."""
    rows = tuple(claims_without_device(claims))
    return (*rows, BLANK) if rows else ()


def _less_offered_lines(gpu: Json, status: Json) -> Iterator[Line]:
    """Why the GPU offers less to claims than it could."""
    reasons = (one for one in status.get("lessOffered", ()) if one.get("gpu") == gpu.get("uuid"))
    return less_offered_lines(reasons, status.get("problems", ()))


def _device_names(gpu: Json) -> dict[str, str]:
    """What each device of the GPU is called below it, by UUID."""
    names = {str(gpu["uuid"]): "the GPU"} if gpu.get("uuid") else {}
    devices = (i for i in gpu.get("instances", ()) if i.get("uuid"))
    return names | {str(device["uuid"]): _device_name(device) for device in devices}


def _device_name(device: Json) -> str:
    return f"{device.get('profile')} at {device.get('start')}"


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
