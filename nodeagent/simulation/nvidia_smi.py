"""A stand-in for the program `nvidia-smi`, for what the agent runs it for: resets, time slices.

    NODEAGENT_SIMULATED_STATE=FILE python -m nodeagent.simulation.nvidia_smi --gpu-reset -i GPU
    ... compute-policy -i GPU --list
    ... compute-policy -i GPU --set-timeslice=3

It acts on the simulated node in that state file. Output and exit codes follow the real program
as far as they are published: 0 done, 2 bad usage, 3 not supported, 6 no such GPU, 15 lost,
255 anything else, a GPU in use among it.
"""

# It is a program, and programs print:
# ruff: noqa: T201

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from nodeagent.errors import NodeagentError, UsageError
from nodeagent.simulation import compute_policy
from nodeagent.simulation.card import Card
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.node import SimulatedNode, open_node

STATE_VARIABLE = "NODEAGENT_SIMULATED_STATE"
_BAD_USAGE, _OTHER = 2, 255
_RESET = ("--gpu-reset", "-r")
_ID = ("--id", "-i")
_IN_USE = (
    "The following GPUs could not be reset:\n"
    "  GPU {address}: In use by another client\n\n"
    "1 device is currently being used by one or more other processes (e.g., Fabric Manager, "
    "CUDA application, graphics application such as an X server, or a monitoring application "
    "such as another instance of nvidia-smi). Please first kill all processes using this device "
    "and all compute applications running in the system."
)


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    if arguments[:1] == ["compute-policy"]:
        return _compute_policy(arguments[1:])
    wanted = _read_arguments(arguments)
    if wanted is None:
        print("usage: nvidia-smi --gpu-reset [-i <index, UUID or PCI address>,...]")
        return _BAD_USAGE
    return _on_node(lambda node: _reset_all(node, wanted))


def _compute_policy(arguments: list[str]) -> int:
    request = compute_policy.read_arguments(arguments)
    if request is None:
        compute_policy.print_usage()
        return 0 if arguments in ([], ["-h"], ["--help"]) else _BAD_USAGE
    return _on_node(lambda node: _run_policy(node, request))


def _run_policy(node: SimulatedNode, request: compute_policy.Request) -> int:
    cards = _cards(node, request.gpus)
    if cards is None:
        print("Failed to find any matching device(s)")
        return int(Code.NOT_FOUND)
    return compute_policy.run(node, request, cards)


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
        node = open_node(state=Path(path))
    except NodeagentError as error:
        print(error, file=sys.stderr)
        return int(Code.DRIVER_NOT_LOADED)
    try:
        if node.driver_failure:
            print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
            return int(Code.DRIVER_NOT_LOADED)
        return run(node)
    finally:
        node.close()


def _cards(node: SimulatedNode, wanted: list[str]) -> list[Card] | None:
    """The GPUs of these names (none named: all); None when there is one that is no GPU."""
    try:
        found = [node.find(name) for name in wanted or [str(card.index) for card in node.cards]]
    except UsageError:
        return None
    return None if any(instance is not None for _, instance, _ in found) else [f[0] for f in found]


def _read_arguments(arguments: list[str]) -> list[str] | None:
    """The GPUs to reset (none named: all), None for what this program does not understand."""
    wanted: list[str] = []
    reset = False
    words = iter([w for a in arguments for w in (a.split("=", 1) if a[:2] == "--" else [a])])
    for word in words:
        if word in _RESET:
            reset = True
        elif word in _ID:
            wanted += [name for name in next(words, "").split(",") if name]
        else:
            return None
    return wanted if reset else None


def _reset_all(node: SimulatedNode, wanted: list[str]) -> int:
    cards = _cards(node, wanted)
    if cards is None:
        print("No devices were found")
        return int(Code.NOT_FOUND)
    for card in cards:
        if code := _reset(node, card):
            return code
    print("All done.")
    return int(Code.SUCCESS)


def _reset(node: SimulatedNode, card: Card) -> int:
    address = card.identity.pci_bus_id
    if card.state.failure == Code.GPU_IS_LOST:
        print(f"Unable to reset GPU {address}: GPU is lost. Reboot the system to recover it.")
        return int(Code.GPU_IS_LOST)
    if node.switches.passthrough:
        print(f"Resetting GPU {address} is not supported.")
        return int(Code.NOT_SUPPORTED)
    watched = node.switches.reset_needs_nvml_closed and node.nvml_is_open_elsewhere()
    if watched or not _is_reset(node, card):
        print(_IN_USE.format(address=address))
        return _OTHER
    print(f"GPU {address} was successfully reset.")
    return 0


def _is_reset(node: SimulatedNode, card: Card) -> bool:
    try:
        node.reset(card.index)
    except Refused:
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
