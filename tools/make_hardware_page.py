"""Write docs/hardware.md from the simulator's board files, with the evidence of each figure.

python tools/make_hardware_page.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nodeagent.simulation.boards import board_names, read_board

Json = dict[str, Any]

PAGE = Path(__file__).parents[1] / "docs/hardware.md"

MARKS = {"confirmed": "", "single-source": "¹", "inferred": "²", "assumed": "³"}

HEAD = """\
# Hardware

<!-- written by tools/make_hardware_page.py; change the boards, not this page -->

What each card has, as far as it is published. The agent does not need this table: profiles, sizes
and placements are what the driver reports on the node (`nodeagent profiles`). The simulator has
these figures, and so do the examples of these pages. None was read off a card by this project.

A figure without a mark is confirmed: by two sources, by captures of real cards, or by the vendor's
specification. ¹ one source; ² deduced from another figure or another card; ³ no evidence, an
estimate. The sources of each figure are in `nodeagent/simulation/boards/`, those of each card
[below](#sources).

## Cards

`capability` is CUDA's compute capability, and memory what the driver reports as total. `reset`:
switching MIG mode needs a GPU reset. `kept`: the mode outlives a reboot; instances never do.

| card | product | capability | MiB | multiprocessors | memory slices | instances | reset | kept |
|---|---|---|---|---|---|---|---|---|
"""

PROFILES = """\

## Profiles

Memory in MiB; `at` are the memory slices at which an instance may begin, and how many it takes. The
engines are copy, decoder, encoder, JPEG and optical flow. `id` is the number that `nvidia-smi mig
-lgip` shows.

"""

COLUMNS = """\
| profile | id | most | MiB | multiprocessors | at | engines |
|---|---|---|---|---|---|---|
"""
OF_CARD = ("product", "compute_capability", "memory_mib", "multiprocessors")
OF_MIG = ("memory_slices", "max_gpu_instances", "mode_change_needs_reset", "mode_survives_reboot")
ENGINES = ("copy_engines", "decoders", "encoders", "jpeg", "ofa")

SOURCES = """\

## Sources

"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page."""
    boards = [read_board(name) for name in board_names()]
    with_mig = [board for board in boards if board["profiles"]]
    return (
        HEAD
        + "".join(map(_card, boards))
        + PROFILES
        + "\n".join(map(_profiles, with_mig))
        + SOURCES
        + _sources(boards)
    )


def _card(board: Json) -> str:
    mig = bool(board["profiles"])
    figures = ("product", "compute_capability", "memory_mib", "multiprocessors")
    parts = (
        "memory_slices",
        "max_gpu_instances",
        "mode_change_needs_reset",
        "mode_survives_reboot",
    )
    cells = [_figure(board, name) for name in figures]
    cells += [_figure(board, name) if mig else "" for name in parts]
    return _row([f"`{board['board']}`", *cells])


def _profiles(board: Json) -> str:
    rows = "".join(map(_profile, board["profiles"]))
    return f"### {board['board']}\n\n{COLUMNS}{rows}"


def _profile(profile: Json) -> str:
    starts = ", ".join(str(place["start"]) for place in profile["placements"])
    size = profile["placements"][0]["size"]
    engines = " ".join(_figure(profile, name) for name in ENGINES)
    return _row(
        [
            _figure(profile, "name"),
            _figure(profile, "id"),
            _figure(profile, "max_instances"),
            _figure(profile, "memory_mib"),
            _figure(profile, "multiprocessors"),
            f"{{{starts}}}:{size}{_mark(profile, 'placements')}",
            engines,
        ]
    )


def _sources(boards: Iterable[Json]) -> str:
    meanings: dict[str, str] = {}
    cards: dict[str, list[str]] = {}
    for board in boards:
        for key, meaning in board["sources"].items():
            meanings[key] = meaning
            cards.setdefault(key, []).append(board["board"])
    rows = (_row([f"`{key}`", meanings[key], ", ".join(cards[key])]) for key in sorted(meanings))
    return "| source | what it is | cards |\n|---|---|---|\n" + "".join(rows)


def _figure(of: Json, name: str) -> str:
    value = of[name]
    words = ("no", "yes")[value] if isinstance(value, bool) else str(value)
    return words + _mark(of, name)


def _mark(of: Json, name: str) -> str:
    return MARKS[of["provenance"][name]["status"]]


def _row(cells: Iterable[str]) -> str:
    escaped = (re.sub(r"([|*])", r"\\\1", cell) for cell in cells)
    return f"| {' | '.join(escaped)} |\n"


if __name__ == "__main__":
    main()
