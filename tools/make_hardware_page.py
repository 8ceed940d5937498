"""Write docs/hardware.md from the simulator's board files, with the evidence of each figure.

python tools/make_hardware_page.py
"""

from __future__ import annotations

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

What each card has, as far as it is published; none of it was read off a card by this project. The
agent does not need this page: profiles, sizes and places are what the driver reports. The simulator
has these figures, with their sources, in `nodeagent/simulation/boards/`, and shows more of them,
such as places and engines:

```sh
nodeagent profiles --simulate b200:1
nodeagent simulate boards  # also how well each is known
nodeagent plan -f examples/mig-parted/config.yaml -c all-balanced --simulate b200:8
```

A figure without a mark is confirmed: by two sources, by captures of real cards, or by the vendor's
specification. ¹ one source; ² deduced from another figure or another card; ³ no evidence, an
estimate.

## Cards

`capability` is CUDA's compute capability, SMs are multiprocessors, and memory is what the driver
reports as total. `reset`: switching MIG mode needs a GPU reset. `kept`: the mode outlives a reboot;
instances never do.

| card | product | capability | MiB | SMs | memory slices | instances | reset | kept |
|---|---|---|---|---|---|---|---|---|
"""

PROFILES = """\

## Profiles

How many instances of each a GPU can have at most, and their memory in MiB.

| card | profiles |
|---|---|
"""

OF_CARD = ("product", "compute_capability", "memory_mib", "multiprocessors")
OF_MIG = ("memory_slices", "max_gpu_instances", "mode_change_needs_reset", "mode_survives_reboot")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page."""
    boards = [read_board(name) for name in board_names()]
    with_mig = [board for board in boards if board["profiles"]]
    return HEAD + "".join(map(_card, boards)) + PROFILES + "".join(map(_profiles, with_mig))


def _card(board: Json) -> str:
    mig = bool(board["profiles"])
    cells = [_figure(board, name) for name in OF_CARD]
    cells += [_figure(board, name) if mig else "" for name in OF_MIG]
    return _row([f"`{board['board']}`", *cells])


def _profiles(board: Json) -> str:
    return _row([f"`{board['board']}`", ", ".join(map(_profile, board["profiles"]))])


def _profile(profile: Json) -> str:
    shown = (profile["provenance"][name]["status"] for name in ("max_instances", "memory_mib"))
    worst = max(shown, key=list(MARKS).index)
    count, memory = profile["max_instances"], profile["memory_mib"]
    return f"{count}×{profile['name']} ({memory}){MARKS[worst]}"


def _figure(of: Json, name: str) -> str:
    value = of[name]
    words = ("no", "yes")[value] if isinstance(value, bool) else str(value)
    return words + MARKS[of["provenance"][name]["status"]]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    main()
