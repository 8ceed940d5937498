"""A stand-in for `nvidia-smi`: the commands that the agent runs, or names in a remedy.

    NODEAGENT_SIMULATED_STATE=FILE python -m nodeagent.simulation.nvidia_smi --gpu-reset -i GPU
    ... -i GPU -mig 0
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
from dataclasses import dataclass
from pathlib import Path

from nodeagent.errors import NodeagentError, UsageError
from nodeagent.simulation import SimulatedNode, compute_policy, open_node
from nodeagent.simulation.card import Card
from nodeagent.simulation.codes import Code, Refused

STATE_VARIABLE = "NODEAGENT_SIMULATED_STATE"
_BAD_USAGE, _OTHER = 2, 255
_RESET = ("--gpu-reset", "-r")
_ID = ("--id", "-i")
_MIG = ("-mig", "--multi-instance-gpu")
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
    asked = _read_arguments(arguments)
    if asked is None:
        print("usage: nvidia-smi [--gpu-reset | -mig 0|1] [-i <index, UUID or PCI address>,...]")
        return _BAD_USAGE
    return _on_node(lambda node: _do_to_all(node, asked))


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
        if node.state.driver_failure:
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


@dataclass(frozen=True, slots=True)
class _Asked:
    """The GPUs (none named: all), and the MIG mode that they are to have; None: a reset."""

    gpus: tuple[str, ...]
    mode: bool | None = None


def _read_arguments(arguments: list[str]) -> _Asked | None:
    """None for what this program does not understand."""
    gpus: list[str] = []
    reset, mode = False, ""
    words = iter([w for a in arguments for w in (a.split("=", 1) if a[:2] == "--" else [a])])
    for word in words:
        if word in _RESET:
            reset = True
        elif word in _MIG:
            mode = next(words, "")
        elif word in _ID:
            gpus += [name for name in next(words, "").split(",") if name]
        else:
            return None
    if reset is bool(mode) or mode not in {"", "0", "1"}:
        return None
    return _Asked(tuple(gpus), None if reset else mode == "1")


def _do_to_all(node: SimulatedNode, asked: _Asked) -> int:
    cards = _cards(node, list(asked.gpus))
    if cards is None:
        print("No devices were found")
        return int(Code.NOT_FOUND)
    for card in cards:
        code = _reset(node, card) if asked.mode is None else _set_mode(node, card, on=asked.mode)
        if code:
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
    if node.switches.passthrough:
        print(f"Resetting GPU {address} is not supported.")
        return int(Code.NOT_SUPPORTED)
    watched = node.switches.reset_needs_nvml_closed and node.store.nvml_is_open_elsewhere()
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
