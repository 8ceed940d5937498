"""Opening and closing the simulated library."""

from __future__ import annotations

import pynvml
import pytest

from nodeagent.simulation import simulated
from nodeagent.simulation.codes import Code
from tests.simulation import calls


def test_nothing_answers_before_initialisation() -> None:
    """Every call is UNINITIALIZED before nvmlInit and after the last nvmlShutdown."""
    with simulated("h100-80gb"):
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetCount()
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 1
        pynvml.nvmlShutdown()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetCount()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlShutdown()


def test_initialisations_are_counted() -> None:
    """Only the last shutdown closes the library."""
    with simulated("h100-80gb"):
        pynvml.nvmlInit()
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        assert pynvml.nvmlDeviceGetCount() == 1
        pynvml.nvmlShutdown()


def test_handles_do_not_outlive_a_shutdown() -> None:
    """A handle from before is stale after the next initialisation."""
    with simulated("h100-80gb"):
        pynvml.nvmlInit()
        device = calls.gpu()
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetUUID(device)
        assert pynvml.nvmlDeviceGetUUID(calls.gpu()).startswith("GPU-")
        pynvml.nvmlShutdown()


def test_the_codes_are_those_of_pynvml() -> None:
    """Every code has the value that pynvml knows it by."""
    for code in Code:
        name = "NVML_SUCCESS" if code is Code.SUCCESS else f"NVML_ERROR_{code.name}"
        assert getattr(pynvml, name.replace("IS_LOST", "IS_LOST")) == code


def test_a_driver_that_is_not_loaded() -> None:
    """Initialising says so; when it is loaded, everything starts anew."""
    with calls.node_with("h100-80gb") as node:
        device = calls.gpu()
        node.unload_driver()
        with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
            pynvml.nvmlDeviceGetUUID(device)
        with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
            pynvml.nvmlInit()
        node.load_driver()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetUUID(device)
        pynvml.nvmlInit()
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetUUID(device)
        assert pynvml.nvmlDeviceGetMigMode(calls.gpu()) == [0, 0]


def test_without_persistence_hopper_forgets_its_mode_with_the_last_client() -> None:
    """The last shutdown takes mode and instances, unless a process keeps the GPU open."""
    with calls.node_with("h100-80gb:2,a100-80gb") as node:
        for index in range(3):
            pynvml.nvmlDeviceSetPersistenceMode(calls.gpu(index), 0)
            calls.create_device(calls.gpu(index), "1g")
        node.occupy("1/13/0")
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        modes = [pynvml.nvmlDeviceGetMigMode(calls.gpu(i))[0] for i in range(3)]
        assert modes == [0, 1, 1]
        assert [len(card.state.instances) for card in node.cards] == [0, 1, 0]
