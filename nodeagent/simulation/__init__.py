"""A GPU node for everyone who has none.

A strict Python object takes the place of the library that pynvml has loaded, so that pynvml's
own code runs. It refuses what a card refuses, and raises SimulatorMisuse where C would crash.

    with simulated("h100-80gb:8") as node:
        pynvml.nvmlInit()
        ...
        node.occupy(0, command="python")

The names below are loaded when they are first used: programs of this package, such as the
stand-ins for MPS, start many times faster without them.
"""

from __future__ import annotations

from contextlib import contextmanager

TYPE_CHECKING = False  # as type checkers know it; the module `typing` takes milliseconds
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from nodeagent.simulation.boards import Overrides, known_boards
    from nodeagent.simulation.codes import Code, SimulatorMisuse
    from nodeagent.simulation.node import SimulatedNode
    from nodeagent.simulation.switches import Switches

__all__ = ["Code", "SimulatedNode", "SimulatorMisuse", "Switches", "known_boards", "simulated"]

_HOMES = {
    "Code": "codes",
    "SimulatedNode": "node",
    "SimulatorMisuse": "codes",
    "Switches": "switches",
    "known_boards": "boards",
}


def __getattr__(name: str) -> object:
    """Load what is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


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
    """Within it, pynvml talks to a simulated node, whose arguments are those of `SimulatedNode`.

    `latency` in seconds is spent in every call, or by C name (`*` for all others).
    `privileged` False is a user who may not configure MIG. Raises UsageError and NodeagentError.
    """
    from nodeagent.simulation.node import SimulatedNode  # these load pynvml
    from nodeagent.simulation.nvml_library import SimulatedLibrary, installed

    with SimulatedNode(
        boards, state=state, switches=switches, overrides=overrides, mirrored=mirrored
    ) as node:
        library = SimulatedLibrary(node, latency=latency, privileged=privileged)
        with installed(library):
            yield node
