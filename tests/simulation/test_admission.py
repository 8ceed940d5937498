"""Whom a simulated device's compute mode keeps out."""

from __future__ import annotations

import pynvml
import pytest

from nodeagent.errors import UsageError
from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.admission import MPS_SERVER, ComputeMode
from tests.simulation import calls


def _with_mode(node: SimulatedNode, mode: ComputeMode) -> None:
    node.cards[0].state.compute_mode = mode


def test_by_default_everybody_comes() -> None:
    """Side by side."""
    with calls.node_with("t4") as node:
        for kind in ("compute", "compute", "mps", "graphics"):
            node.occupy(0, kind=kind)


def test_a_prohibited_device_takes_no_compute_process() -> None:
    """No client of MPS either; a display server is not concerned."""
    with calls.node_with("t4") as node:
        _with_mode(node, ComputeMode.PROHIBITED)
        for kind in ("compute", "mps"):
            with pytest.raises(UsageError, match="PROHIBITED"):
                node.occupy(0, kind=kind)
        node.occupy(0, kind="graphics")


def test_an_exclusive_device_takes_one_process() -> None:
    """The next may come when it is gone; those who draw do not count."""
    with calls.node_with("t4") as node:
        _with_mode(node, ComputeMode.EXCLUSIVE_PROCESS)
        node.occupy(0, kind="graphics")
        first = node.occupy(0, command="train")
        for kind in ("compute", "mps"):
            with pytest.raises(UsageError, match=rf"{first.pid} \(train\) has it.*busy"):
                node.occupy(0, kind=kind)
        node.occupy(0, kind="graphics")
        node.release(pid=first.pid)
        node.occupy(0)


def test_all_clients_of_mps_are_one_process_to_an_exclusive_device() -> None:
    """With their server; a program that missed MPS is kept out, which is what the mode is for."""
    with calls.node_with("t4") as node:
        _with_mode(node, ComputeMode.EXCLUSIVE_PROCESS)
        node.occupy(0, command=MPS_SERVER)
        for _ in range(3):
            node.occupy(0, kind="mps")
        with pytest.raises(UsageError, match="come as a client of its MPS server"):
            node.occupy(0)


def test_who_is_there_stays_when_the_mode_changes() -> None:
    """The mode says who may come."""
    with calls.node_with("t4") as node:
        pids = [node.occupy(0).pid for _ in range(2)]
        pynvml.nvmlDeviceSetComputeMode(calls.gpu(), pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
        assert [process.pid for process in node.cards[0].processes()] == pids
        with pytest.raises(UsageError, match="EXCLUSIVE_PROCESS"):
            node.occupy(0)


def test_each_mig_device_decides_for_itself() -> None:
    """The neighbour takes as many as before."""
    with calls.node_with("h100-80gb") as node:
        devices = [calls.create_device(calls.gpu(), "1g", start) for start in (0, 1)]
        first, second = map(pynvml.nvmlDeviceGetUUID, devices)
        pynvml.nvmlDeviceSetComputeMode(devices[0], pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
        node.occupy(first)
        with pytest.raises(UsageError, match="EXCLUSIVE_PROCESS"):
            node.occupy(first)
        node.occupy(second)
        node.occupy(second)
