"""A GPU node for everyone who has none.

A strict Python object takes the place of the library that pynvml has loaded, so that pynvml's
own code runs. It refuses what a card refuses, and raises SimulatorMisuse where C would crash.

    with simulated("h100-80gb:8") as node:
        pynvml.nvmlInit()
        ...
        node.occupy(0, command="python")
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.simulation.boards import Overrides, parse_boards
from nodeagent.simulation.codes import Code
from nodeagent.simulation.misuse import SimulatorMisuse
from nodeagent.simulation.node import SimulatedNode, open_node
from nodeagent.simulation.switches import Switches

if TYPE_CHECKING:
    from nodeagent.simulation.catalogue import KnownBoard

__all__ = [
    "Code",
    "Overrides",
    "SimulatedNode",
    "SimulatorMisuse",
    "Switches",
    "known_boards",
    "open_node",
    "parse_boards",
    "read_overrides",
    "simulated",
]


def known_boards() -> tuple[KnownBoard, ...]:
    """What there is to simulate and how well it is known, for people to read."""
    from nodeagent.simulation import catalogue  # reads all board files

    return catalogue.known_boards()


def read_overrides(path: Path) -> Overrides:
    """A user's own figures for boards, from a JSON file; raises UsageError."""
    from nodeagent.simulation import overriding

    return overriding.read_overrides(path)


@contextmanager
def simulated(
    boards: str | None = None,
    *,
    state: Path | None = None,
    switches: Switches | None = None,
    overrides: Overrides | None = None,
    mirrored: bool | Collection[int] = False,
    latency: float | Mapping[str, float] = 0.0,
    privileged: bool = True,
) -> Iterator[SimulatedNode]:
    """Within it, pynvml talks to a simulated node.

    `boards` as in `h100-80gb:8` or `a100-40gb:2,t4:1`; it may be left out when the `state` file
    exists. `mirrored` names the GPUs (or all) whose instance ids count from the other side.
    `latency` in seconds is spent in every call, or by C name (`*` for all others).
    `privileged` False is a user who may not configure MIG. Raises UsageError and NodeagentError.
    """
    from nodeagent.simulation.install import installed  # these load pynvml
    from nodeagent.simulation.nvml_library import SimulatedLibrary

    node = open_node(boards, state=state, switches=switches, overrides=overrides, mirrored=mirrored)
    library = SimulatedLibrary(node, latency=latency, privileged=privileged)
    try:
        with installed(library):
            yield node
    finally:
        node.close()
