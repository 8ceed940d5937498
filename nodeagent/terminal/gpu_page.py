"""One GPU in full, from the JSON of the agent's `/v1/status` with this GPU alone in it."""

from collections.abc import Iterator, Sequence
from itertools import chain, starmap

from nodeagent.terminal import status_page, status_words
from nodeagent.terminal.claims_page import claim_lines
from nodeagent.terminal.events_page import event_lines
from nodeagent.terminal.mps_page import daemon_lines
from nodeagent.terminal.page import Json, Line, Span, Tone, dim, indent, joined, line
from nodeagent.terminal.slices import Cell, drawing
from nodeagent.text import gibibytes

_FACTS = {
    "slowdownTemperature": "slows down at {:g} degrees C",
    "powerLimit": "limited to {:g} W",
    "smClock": "SM clock {:g} MHz",
    "eccCorrected": "{} corrected",
    "eccUncorrected": "{} uncorrected ECC errors",
}


def gpu_page(status: Json, width: int, events: Sequence[Json] = ()) -> tuple[Line, ...]:
    """The headline and problems, then the GPU: what is wrong with it first, then all the rest, and
    the `events` of the last hour that concern it.
    """
    (gpu,) = status["gpus"]
    # Those of health are below, with the GPU.
    others = (t for t in status_page.other_troubles(status) if not t.get("evidence"))
    problems = status_page.trouble_lines(*others)
    body = (
        *_health(gpu),
        *_readings(gpu),
        *_picture(gpu, width - 2),
        *status_words.user_lines(gpu),
        *_device_lines(gpu),
        *chain(*starmap(daemon_lines, status_words.daemons_on(gpu, status.get("mps", ())))),
        *claim_lines(status.get("claims", ()), str(gpu.get("uuid"))),
        *status_words.mode_lines(gpu),
        *status_words.room_lines(gpu),
    )
    # A message may be of another GPU.
    top = (*status_page.headline_lines(status), *status_page.title_lines(status))
    last = (line(dim("last hour")), *event_lines(status, events)) if events else ()
    return joined(top, problems, (*_title(gpu), *indent(body, 2)), last)


def _title(gpu: Json) -> tuple[Line, ...]:
    name = line(Span(f"GPU {gpu['index']}", Tone.TITLE), f"  {gpu.get('name', '')}")
    ids = "  ".join(str(gpu[key]) for key in ("uuid", "pciBusId") if gpu.get(key))
    numa = f"  NUMA node {gpu['numaNode']}" if "numaNode" in gpu else ""
    return (name, *([line(dim(f"  {ids}{numa}"))] if ids or numa else []))


def _readings(gpu: Json) -> tuple[Line, ...]:
    memory, links = gpu.get("memory") or {}, gpu.get("nvlink") or {}
    words = [
        f"utilization {gpu['utilization']:g} %" if "utilization" in gpu else "",
        f"memory {_of_all(memory)}" if "used" in memory else "",
        f"{gpu['temperature']:g} degrees C" if "temperature" in gpu else "",
        f"{gpu['power']:g} W" if "power" in gpu else "",
        f"{links['active']} of {links['total']} NVLinks up" if links else "",
    ]
    less = [reason for reason in gpu.get("clockReasons", ()) if reason != "gpu_idle"]
    rest = [form.format(gpu[key]) for key, form in _FACTS.items() if key in gpu]
    rest += [f"slowed by {', '.join(less)}"] if less else []
    rest += [f"{times} x XID {number}" for number, times in gpu.get("xids", {}).items()]
    return tuple(line(", ".join(filter(None, row))) for row in (words, rest) if any(row))


def _of_all(memory: Json) -> str:
    return f"{gibibytes(int(memory['used']))} of {gibibytes(int(memory['total']))}"


def _picture(gpu: Json, width: int) -> tuple[Line, ...]:
    slots, cells = int(gpu.get("slots") or 0), status_words.cells_of(gpu)
    if not status_words.answers(gpu):  # what is known of it is from before
        cells = [cell._replace(labels=cell.labels[:1]) for cell in cells]
        return drawing([("was", cells)], slots, width) if cells else ()
    if not slots:
        return (line(status_words.mode_words(gpu)),)
    cells = cells or [Cell(0, slots, (status_words.mode_words(gpu),), Tone.DIM)]
    return drawing([("now", cells)], slots, width)


def _device_lines(gpu: Json) -> Iterator[Line]:
    """The MIG devices with their UUIDs, which `CUDA_VISIBLE_DEVICES` takes, and what they use."""
    for device in gpu.get("instances", ()):
        memory: Json = device.get("memory") or {}
        facts = [
            str(device.get("uuid") or "half made"),
            _of_all(memory) if memory else "",
            f"{device['utilization']:g} % busy" if "utilization" in device else "",
        ]
        said = ", ".join(filter(None, facts))
        yield line(dim(f"{status_words.device_name(device)}: {said}"))


def _health(gpu: Json) -> tuple[Line, ...]:
    status, findings = status_words.health_of(gpu)
    well = status == "healthy"
    if well and not findings:
        return ()
    lines = [line(dim("healthy, though:") if well else Span(f"! {status}", Tone.BAD))]
    for finding in findings:
        since = f", since {finding['since']}" if finding.get("since") else ""
        count = f", {finding['count']} times" if finding.get("count", 1) > 1 else ""
        lines.append(line(f"  {status_words.finding_said(finding)}", dim(f"{since}{count}")))
        if advice := status_words.finding_advice(finding):
            lines.append(line(f"    {advice}"))
    return tuple(lines)
