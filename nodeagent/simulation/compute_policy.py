"""`nvidia-smi compute-policy`: lists and sets the time slices of a simulated node's GPUs.

Output and exit codes are those of nvidia-smi 535.261.03 and 550.163.01, read from the programs
themselves: texts, columns, the values' names, and NVML's code as the exit code.
"""

# It is part of a program, and programs print:
# ruff: noqa: T201

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nodeagent.simulation.card import Card
from nodeagent.simulation.codes import TEXTS, Code
from nodeagent.simulation.node import SimulatedNode

_VALUES = ("Default", "Short", "Medium", "Long")
_USAGE = """
    Compute Policy -- Control and list compute policies.

    Usage: nvidia-smi compute-policy [options]

    Options include:
    [-i | --id]: GPU device ID's. Provide comma
                 separated values for more than one device

    [-l | --list]: List all compute policies

    [ | --set-timeslice]: Set timeslice config for a GPU:
                          0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG

    [-h | --help]: Display help information
"""
_BORDER = "+-------------------------------------+"
_HEAD = f"""{_BORDER}
| GPU compute policies:               |
| GPU     Name           Value        |
|=====================================|"""


@dataclass(slots=True)
class Request:
    """What the arguments ask for; no GPU named means all."""

    gpus: list[str] = field(default_factory=list)
    lists: bool = False
    time_slice: int | None = None


def read_arguments(words: Sequence[str]) -> Request | None:
    """None for what the program would answer with its usage."""
    request = Request()
    rest = iter([w for a in words for w in (a.split("=", 1) if a[:2] == "--" else [a])])
    for word in rest:
        match word:
            case "-i" | "--id":
                request.gpus += [name for name in next(rest, "").split(",") if name]
            case "-l" | "--list":
                request.lists = True
            case "--set-timeslice":
                number = next(rest, "")
                if number not in {"0", "1", "2", "3"}:
                    return None
                request.time_slice = int(number)
            case _:
                return None
    one = request.lists != (request.time_slice is not None)
    return request if one else None


def print_usage() -> None:
    """What it says to arguments that it does not understand, and to none."""
    print(_USAGE)


def run(node: SimulatedNode, request: Request, cards: Sequence[Card]) -> int:
    """Do it for these cards; returns the exit code."""
    if request.time_slice is not None:
        return _set(node, cards, request.time_slice)
    return _list(node, cards)


def _list(node: SimulatedNode, cards: Sequence[Card]) -> int:
    print(_HEAD)
    for card in cards:
        if refused := _refusal(node, card):
            print(f"Failed to get compute policies for GPU {card.index} : {_text(refused)}")
            why = _text(refused)
            print(f"Failed to retrieve compute policies for requested devices : {why}")
            return int(refused)
        print(f"| {card.index:>3}   {'Timeslice':<15} {_VALUES[card.state.time_slice]:<13} |")
        print(_BORDER)
    return 0


def _set(node: SimulatedNode, cards: Sequence[Card], time_slice: int) -> int:
    value = f"timeslice policy with value {_VALUES[time_slice]} for GPU"
    for card in cards:
        if refused := _refusal(node, card):
            print(f"Failed to set {value} {card.index} : {_text(refused)}")
            print(f"Failed to set timeslice for requested devices : {_text(refused)}")
            return int(refused)
        with node.changes():
            card.state.time_slice = time_slice
        print(f"Successfully set {value} {card.index}")
    return 0


def _refusal(node: SimulatedNode, card: Card) -> Code | None:
    if card.state.failure:
        return Code(card.state.failure)
    return (
        None if node.switches.time_slices and not node.switches.vgpu_guest else Code.NOT_SUPPORTED
    )


def _text(code: Code) -> str:
    return TEXTS.get(code, "Unknown Error")
