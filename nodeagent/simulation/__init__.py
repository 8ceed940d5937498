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

TYPE_CHECKING = False  # as type checkers know it; the module `typing` takes milliseconds
if TYPE_CHECKING:
    from nodeagent.simulation.boards import known_boards
    from nodeagent.simulation.codes import Code, SimulatorMisuse
    from nodeagent.simulation.node import SimulatedNode
    from nodeagent.simulation.nvml_library import simulated
    from nodeagent.simulation.switches import Switches

__all__ = ["Code", "SimulatedNode", "SimulatorMisuse", "Switches", "known_boards", "simulated"]

_HOMES = {
    "Code": "codes",
    "SimulatedNode": "node",
    "SimulatorMisuse": "codes",
    "Switches": "switches",
    "known_boards": "boards",
    "simulated": "nvml_library",
}


def __getattr__(name: str) -> object:
    """Load what is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
