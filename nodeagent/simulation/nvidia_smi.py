"""A stand-in for `nvidia-smi`: the commands that the agent runs, or names in a remedy.

    NODEAGENT_SIMULATED_STATE=FILE python -m nodeagent.simulation.nvidia_smi --gpu-reset -i GPU
    ... -i GPU -mig 0
    ... compute-policy -i GPU --list
    ... compute-policy -i GPU --set-timeslice=3

It acts on the simulated node in that state file. Output and exit codes follow the real program
as far as they are published: 0 done, 2 bad usage, 3 not supported, 6 no such GPU, 15 lost,
255 anything else, a GPU in use among it. Those of `compute-policy` are of 535.261.03 and
550.163.01, read from the programs themselves.
"""

# It is a program, and programs print:
# ruff: noqa: T201

import os
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from nodeagent.errors import NodeagentError, UsageError
from nodeagent.simulation.card import Card
from nodeagent.simulation.codes import TEXTS, Code, Refused
from nodeagent.simulation.node import SimulatedNode
from nodeagent.simulation.state_file import STATE_VARIABLE

_BAD_USAGE, _OTHER = 2, 255
_LONG = {"-r": "--gpu-reset", "-i": "--id", "-mig": "--multi-instance-gpu", "-l": "--list"}
_IN_USE = (
    "The following GPUs could not be reset:\n"
    "  GPU {address}: In use by another client\n\n"
    "1 device is currently being used by one or more other processes (e.g., Fabric Manager, "
    "CUDA application, graphics application such as an X server, or a monitoring application "
    "such as another instance of nvidia-smi). Please first kill all processes using this device "
    "and all compute applications running in the system."
)


_TIME_SLICES = ("Default", "Short", "Medium", "Long")
_POLICY_USAGE = """
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


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    if arguments[:1] == ["compute-policy"]:
        return _compute_policy(arguments[1:])
    options = _options(arguments, {"--gpu-reset"}, {"--id", "--multi-instance-gpu"})
    mode = (options or {}).get("--multi-instance-gpu")
    if (
        options is None
        or ("--gpu-reset" in options) is (mode is not None)
        or mode not in {None, "0", "1"}
    ):
        print("usage: nvidia-smi [--gpu-reset | -mig 0|1] [-i <index, UUID or PCI address>,...]")
        return _BAD_USAGE
    return _on_node(lambda node: _do_to_all(node, options, mode))


def _compute_policy(arguments: list[str]) -> int:
    options = _options(arguments, {"--list"}, {"--id", "--set-timeslice"}) or {}
    time_slice = options.get("--set-timeslice")
    one = ("--list" in options) != (time_slice is not None)
    if not one or time_slice not in {None, "0", "1", "2", "3"}:
        print(_POLICY_USAGE)
        return 0 if arguments in ([], ["-h"], ["--help"]) else _BAD_USAGE
    return _on_node(lambda node: _policy_of_all(node, options, time_slice))


def _options(
    arguments: Sequence[str], flags: Collection[str], valued: Collection[str]
) -> dict[str, str] | None:
    """By their long names; None for what this program does not understand."""
    found: dict[str, str] = {}
    words = iter([w for a in arguments for w in (a.split("=", 1) if a[:2] == "--" else [a])])
    for word in words:
        name = _LONG.get(word, word)
        if name in flags:
            found[name] = ""
        elif name in valued:
            value = next(words, "")
            found[name] = f"{found[name]},{value}" if name == "--id" and name in found else value
        else:
            return None
    return found


def _on_node(run: Callable[[SimulatedNode], int]) -> int:
    """Do it on the node in the state file, with its driver loaded."""
    path = os.environ.get(STATE_VARIABLE)
    if not path:
        print(
            f"{STATE_VARIABLE} names no state file of a simulated node: run it with --state FILE",
            file=sys.stderr,
        )
        return int(Code.DRIVER_NOT_LOADED)
    try:
        node = SimulatedNode(state=Path(path))
    except NodeagentError as error:
        print(error, file=sys.stderr)
        return int(Code.DRIVER_NOT_LOADED)
    with node:
        if node.state.driver_failure:
            print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
            return int(Code.DRIVER_NOT_LOADED)
        return run(node)


def _cards(node: SimulatedNode, options: dict[str, str]) -> list[Card] | None:
    """The GPUs that are named (none: all); None when there is one that is no GPU."""
    wanted = [name for name in options.get("--id", "").split(",") if name]
    try:
        found = [node.find(name) for name in wanted or [str(card.index) for card in node.cards]]
    except UsageError:
        return None
    return None if any(instance is not None for _, instance, _ in found) else [f[0] for f in found]


def _do_to_all(node: SimulatedNode, options: dict[str, str], mode: str | None) -> int:
    cards = _cards(node, options)
    if cards is None:
        print("No devices were found")
        return int(Code.NOT_FOUND)
    for card in cards:
        if code := _reset(node, card) if mode is None else _set_mode(node, card, on=mode == "1"):
            return code
    print("All done.")
    return int(Code.SUCCESS)


def _set_mode(node: SimulatedNode, card: Card, *, on: bool) -> int:
    address, word = card.identity.pci_bus_id, "enable" if on else "disable"
    try:
        with node.changes():
            waits = card.set_mig_mode(enabled=on)
    except Refused as refusal:
        print(f"Unable to {word} MIG Mode for GPU {address}: Not Supported")
        return int(refusal.code)
    if waits:
        print(f"Warning: MIG mode is in pending {word} state for GPU {address}")
    print(f"{word.capitalize()}d MIG Mode for GPU {address}")
    return 0


def _reset(node: SimulatedNode, card: Card) -> int:
    address = card.identity.pci_bus_id
    if card.state.failure == Code.GPU_IS_LOST:
        print(f"Unable to reset GPU {address}: GPU is lost. Reboot the system to recover it.")
        return int(Code.GPU_IS_LOST)
    how = "NOT_SUPPORTED" if node.switches.passthrough else node.switches.gpu_reset
    if how == "NOT_SUPPORTED":
        print(f"Resetting GPU {address} is not supported.")
        return int(Code.NOT_SUPPORTED)
    if how == "NO_PERMISSION":
        print(f"Unable to reset GPU {address}: Insufficient Permissions")
        return int(Code.NO_PERMISSION)
    in_use = node.switches.reset_needs_nvml_closed and node.store.nvml_is_open_elsewhere()
    try:
        if not in_use and how == "works":
            node.reset(card.index)
    except Refused:
        in_use = True
    if in_use:
        print(_IN_USE.format(address=address))
        return _OTHER
    print(f"GPU {address} was successfully reset.")
    return 0


# --- time slices --------------------------------------------------------------------------------


def _policy_of_all(node: SimulatedNode, options: dict[str, str], time_slice: str | None) -> int:
    cards = _cards(node, options)
    if cards is None:
        print("Failed to find any matching device(s)")
        return int(Code.NOT_FOUND)
    if time_slice is None:
        return _list_policies(node, cards)
    return _set_policies(node, cards, int(time_slice))


def _list_policies(node: SimulatedNode, cards: Sequence[Card]) -> int:
    print(_HEAD)
    for card in cards:
        if refused := _refusal(node, card):
            why = _text(refused)
            print(f"Failed to get compute policies for GPU {card.index} : {why}")
            print(f"Failed to retrieve compute policies for requested devices : {why}")
            return int(refused)
        print(f"| {card.index:>3}   {'Timeslice':<15} {_TIME_SLICES[card.state.time_slice]:<13} |")
        print(_BORDER)
    return 0


def _set_policies(node: SimulatedNode, cards: Sequence[Card], time_slice: int) -> int:
    value = f"timeslice policy with value {_TIME_SLICES[time_slice]} for GPU"
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
    return None if node.switches.time_slices else Code.NOT_SUPPORTED


def _text(code: Code) -> str:
    return TEXTS.get(code, "Unknown Error")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
