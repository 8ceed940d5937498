"""Modes of simulated devices that can be set."""

from __future__ import annotations

import pynvml
import pytest

from tests.simulation import calls

EXCLUSIVE = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS


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
