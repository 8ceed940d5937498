"""The node's GPUs as a table: a row each, its slices drawn to scale, and what was read of it last.

In a bar a mark fills what a slice's name leaves free, so that its state shows without colours.
"""

import re
from collections.abc import Iterator, Sequence

from nodeagent.terminal import status_words
from nodeagent.terminal.page import Json, Line, Span, Tone, dim, line, table
from nodeagent.terminal.slices import Cell, with_gaps_filled
from nodeagent.text import alike, gpus_words

_MARKS = {"in use": "█", "idle": "·", "half made": "×", "not known": "?"}
_UNHEALTHY = "!"
# Columns for a memory slice, its left border included; a card without MIG is one of them.
_MIN_PITCH, _MAX_PITCH, _WHOLE = 2, 9, 72
_HEADER = (">UTIL", ">MEM GiB", ">TEMP", ">POWER", "MPS", ">CLAIMS")
_NONE = "-"
_IN_FULL = "one GPU in full: nodeagent status --gpu N"


def model_lines(gpus: Sequence[Json]) -> Iterator[Line]:
    """`GPUs 0-7  8 x NVIDIA H100 80GB HBM3`: one line for each model."""
    names = ((str(gpu.get("name") or "unnamed GPU"), int(gpu["index"])) for gpu in gpus)
    for name, indices in alike(names).items():
        times = f"{len(indices)} x " if len(indices) > 1 else ""
        yield line(Span(gpus_words(indices), Tone.TITLE), f"  {times}{name}")


def gpu_table(
    gpus: Sequence[Json], daemons: Sequence[Json], claims: Sequence[Json], width: int
) -> tuple[Line, ...]:
    """The header and a row for each GPU; columns in which no GPU has anything are left out."""
    facts = _facts([_cells(gpu, daemons, claims) for gpu in gpus])
    bars = [_bar(gpu, width - _length(facts[0]) - len("GPU  ") - 2) for gpu in gpus]
    widest = max(map(_length, bars))
    header = (dim("GPU  " + "SLICES".ljust(widest + 2)), *facts[0])
    rows = (
        (*_index(gpu), *bar, Span(" " * (widest - _length(bar) + 2)), *cells)
        for gpu, bar, cells in zip(gpus, bars, facts[1:], strict=True)
    )
    return (header, *rows)


def legend(rows: Sequence[Line]) -> Line:
    """What the marks in these rows mean, and how to see more."""
    drawn = {character for row in rows for span in row for character in span.text}
    words = [f"{mark} {meaning}" for meaning, mark in _MARKS.items() if mark in drawn]
    words += [f"{_UNHEALTHY} not healthy"] if _UNHEALTHY in drawn else []
    return (dim("     " + "  ".join([*words, _IN_FULL])),)


def _length(spans: Line) -> int:
    return sum(len(span.text) for span in spans)


def _index(gpu: Json) -> Line:
    sick = not status_words.answers(gpu) or status_words.health_of(gpu)[0] != "healthy"
    mark = ">" if gpu.get("marked") else " "  # by the keys of --watch
    return (Span(f"{mark}{gpu['index']:>2}"), Span(f"{_UNHEALTHY if sick else ' '} ", Tone.BAD))


# --- what was read --------------------------------------------------------------------------------


def _facts(rows: Sequence[Sequence[str | Span]]) -> tuple[Line, ...]:
    known = [n for n in range(len(_HEADER)) if any(row[n] != _NONE for row in rows)]
    return table([_HEADER[n] for n in known], [[row[n] for n in known] for row in rows])


def _cells(gpu: Json, daemons: Sequence[Json], claims: Sequence[Json]) -> list[str | Span]:
    uuid = gpu.get("uuid")
    return [
        _figure(gpu, "utilization", "%"),
        _memory(gpu.get("memory") or {}),
        _figure(gpu, "temperature", "C"),
        _figure(gpu, "power", "W"),
        _mps([daemon for daemon, _ in status_words.daemons_on(gpu, daemons)]),
        str(sum(uuid in [d.get("gpu") for d in c.get("devices", ())] for c in claims) or _NONE),
    ]


def _figure(gpu: Json, key: str, unit: str) -> str:
    return f"{gpu[key]:.0f}{unit}" if key in gpu else _NONE


def _memory(memory: Json) -> str:
    """`12.3/79.6`: used and total memory in GiB."""
    both = ("used", "total")
    used, total = (f"{memory[key] / 2**30:.1f}" if key in memory else _NONE for key in both)
    return f"{used}/{total}" if memory.get("total") else _NONE


def _mps(daemons: Sequence[Json]) -> str | Span:
    """`2 Ready`; `1/2 Ready` where one of two is."""
    states = [str(daemon.get("state", "?")) for daemon in daemons]
    ready = states.count("Ready")
    if ready == len(states):
        return f"{ready} Ready" if states else _NONE
    same = f"{len(states)} {states[0]}" if len(set(states)) == 1 else ""
    return Span(same or f"{ready}/{len(states)} Ready", Tone.WARNING)


# --- the slices -----------------------------------------------------------------------------------


def _bar(gpu: Json, width: int) -> Line:
    parts = [_marked(cell) for cell in status_words.cells_of(gpu)]
    slots = max(int(gpu.get("slots") or 0), 1, *(part.start + part.size for part in parts))
    parts = parts or [_whole(gpu, slots)]
    in_full = (-(-(max(map(len, part.labels)) + 2) // part.size) for part in parts)
    most = max(_MAX_PITCH if slots > 1 else _WHOLE, *in_full)
    pitch = min(max((width - 1) // slots, _MIN_PITCH), most)
    spans = [dim("│")]
    for cell in with_gaps_filled(parts, slots):
        spans += [Span(_filled(cell.labels, cell.size * pitch - 1), cell.tone), dim("│")]
    return tuple(spans)


def _marked(cell: Cell) -> Cell:
    """The cell with the mark of its state as first label, then names, the longest first."""
    name, state = cell.labels
    found = re.search(r"(?:\d+c\.)?(\d+g)(?:\.\d+gb)?([+-]\S*)?", name)
    short = (found[1] + (found[2] or ""), found[1]) if found else ()  # 1g+me, 1g
    return cell._replace(labels=(_MARKS[state], name, *short))


def _whole(gpu: Json, slots: int) -> Cell:
    """The GPU where it has no instances, with labels like theirs."""
    if not status_words.answers(gpu):
        return Cell(0, slots, (_MARKS["not known"], "does not answer"), Tone.DIM)
    mode, users = status_words.mode_words(gpu), list(status_words.holders(gpu))
    if users:
        who = users[0] if len(users) == 1 else f"{len(users)} users"
        return Cell(0, slots, (_MARKS["in use"], f"{mode}: {who}", who), Tone.IN_USE)
    divided = (gpu.get("mig") or {}).get("current") == "enabled"
    return Cell(0, slots, (" " if divided else _MARKS["idle"], mode), Tone.DIM)


def _filled(labels: Sequence[str], room: int) -> str:
    """The longest of the names that leaves room for the mark, and the mark for the rest."""
    if not labels:
        return " " * room
    mark, *names = labels
    name = next((name for name in names if len(name) < room), "")
    blank = " " if name and len(name) + 1 < room else ""
    return f"{name}{blank}".ljust(room, mark)
