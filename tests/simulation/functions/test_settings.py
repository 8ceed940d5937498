"""Modes of simulated devices that can be set."""

from __future__ import annotations

import pynvml
import pytest

from nodeagent.simulation import Switches
from tests.simulation import calls

EXCLUSIVE = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS


def test_compute_mode_of_a_gpu() -> None:
    """It is set on the GPU while MIG is off."""
    with calls.node_with("h100-80gb", mig=False):
        pynvml.nvmlDeviceSetComputeMode(calls.gpu(), EXCLUSIVE)
        assert pynvml.nvmlDeviceGetComputeMode(calls.gpu()) == EXCLUSIVE


def test_compute_mode_with_mig_is_one_of_mig_devices() -> None:
    """Then the GPU refuses it, and each MIG device has its own."""
    with calls.node_with("h100-80gb"):
        first, second = (calls.create_device(calls.gpu(), "1g", start) for start in (0, 1))
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetComputeMode(calls.gpu())
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceSetComputeMode(calls.gpu(), EXCLUSIVE)
        pynvml.nvmlDeviceSetComputeMode(first, EXCLUSIVE)
        modes = [pynvml.nvmlDeviceGetComputeMode(device) for device in (first, second)]
        assert modes == [EXCLUSIVE, pynvml.NVML_COMPUTEMODE_DEFAULT]


@pytest.mark.parametrize("answer", ["INVALID_ARGUMENT", "DEFAULT"])
def test_what_a_gpu_in_mig_mode_says_of_its_compute_mode_is_a_switch(answer: str) -> None:
    """It cannot be set in any case."""
    with calls.node_with("h100-80gb", switches=Switches(compute_mode_of_mig_parent=answer)):
        if answer == "DEFAULT":
            assert pynvml.nvmlDeviceGetComputeMode(calls.gpu()) == 0
        else:
            with pytest.raises(pynvml.NVMLError_InvalidArgument):
                pynvml.nvmlDeviceGetComputeMode(calls.gpu())
        with pytest.raises(pynvml.NVMLError):
            pynvml.nvmlDeviceSetComputeMode(calls.gpu(), EXCLUSIVE)


def test_mig_devices_of_older_drivers_have_no_compute_mode() -> None:
    """A switch, too."""
    with calls.node_with("h100-80gb", switches=Switches(mig_compute_modes=False)):
        device = calls.create_device(calls.gpu(), "1g")
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetComputeMode(device)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceSetComputeMode(device, EXCLUSIVE)


def test_compute_mode_goes_with_the_mig_device_and_with_mig_mode() -> None:
    """What is made anew, or undivided again, is as after boot."""
    with calls.node_with("h100-80gb", mig=False):
        pynvml.nvmlDeviceSetComputeMode(calls.gpu(), EXCLUSIVE)
        pynvml.nvmlDeviceSetMigMode(calls.gpu(), 1)
        device = calls.create_device(calls.gpu(), "1g", 0)
        pynvml.nvmlDeviceSetComputeMode(device, EXCLUSIVE)
        instance = calls.instances(calls.gpu(), "1g")[0]
        pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
        pynvml.nvmlGpuInstanceDestroy(instance)
        device = calls.create_device(calls.gpu(), "1g", 0)
        assert pynvml.nvmlDeviceGetComputeMode(device) == pynvml.NVML_COMPUTEMODE_DEFAULT
        pynvml.nvmlDeviceSetMigMode(calls.gpu(), 0)
        assert pynvml.nvmlDeviceGetComputeMode(calls.gpu()) == pynvml.NVML_COMPUTEMODE_DEFAULT


@pytest.mark.parametrize("how", ["reset", "reboot"])
def test_a_reset_and_a_reboot_lose_what_was_set(how: str) -> None:
    """Compute mode and time slice."""
    with calls.node_with("t4") as node:
        pynvml.nvmlDeviceSetComputeMode(calls.gpu(), EXCLUSIVE)
        node.cards[0].state.time_slice = 3
        node.reset(0) if how == "reset" else node.reboot()
        state = node.cards[0].state
        assert (state.compute_mode, state.time_slice) == (0, 0)


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        (pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD, pynvml.NVMLError_NotSupported),
        (pynvml.NVML_COMPUTEMODE_COUNT, pynvml.NVMLError_InvalidArgument),
    ],
)
def test_compute_modes_that_do_not_exist(mode: int, error: type[Exception]) -> None:
    """The mode that drivers dropped, and one that never was."""
    with calls.node_with("t4"), pytest.raises(error):
        pynvml.nvmlDeviceSetComputeMode(calls.gpu(), mode)


def test_persistence_mode() -> None:
    """It is on from boot unless the switch says otherwise, and can be set by a privileged user."""
    with calls.node_with("t4"):
        assert pynvml.nvmlDeviceGetPersistenceMode(calls.gpu()) == 1
        pynvml.nvmlDeviceSetPersistenceMode(calls.gpu(), 0)
        assert pynvml.nvmlDeviceGetPersistenceMode(calls.gpu()) == 0
    with calls.node_with("t4", privileged=False):
        with pytest.raises(pynvml.NVMLError_NoPermission):
            pynvml.nvmlDeviceSetPersistenceMode(calls.gpu(), 0)
        with pytest.raises(pynvml.NVMLError_NoPermission):
            pynvml.nvmlDeviceSetComputeMode(calls.gpu(), EXCLUSIVE)
