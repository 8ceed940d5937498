"""What can be read from simulated devices."""

from __future__ import annotations

import pynvml
import pytest

from tests.simulation import calls

MIB = 1 << 20
UTILISATIONS = [
    pynvml.nvmlDeviceGetUtilizationRates,
    pynvml.nvmlDeviceGetEncoderUtilization,
    pynvml.nvmlDeviceGetDecoderUtilization,
    pynvml.nvmlDeviceGetJpgUtilization,
    pynvml.nvmlDeviceGetOfaUtilization,
]


def test_memory_of_a_gpu() -> None:
    """Version 1 counts reserved memory as used, version 2 counts it apart; sums are right."""
    with calls.node_with("h100-80gb", mig=False) as node:
        node.occupy(0, memory=1000 * MIB)
        old = pynvml.nvmlDeviceGetMemoryInfo(calls.gpu())
        new = pynvml.nvmlDeviceGetMemoryInfo(calls.gpu(), version=pynvml.nvmlMemory_v2)
        assert old.total == new.total == 81559 * MIB
        assert (old.used, new.used, new.reserved) == (1480 * MIB, 1000 * MIB, 480 * MIB)
        assert old.free == new.free == old.total - old.used


def test_memory_of_a_mig_device_and_its_gpu() -> None:
    """A process counts for its device and for the whole."""
    with calls.node_with("a100-80gb") as node:
        device = calls.create_device(calls.gpu(), "3g")
        node.occupy(pynvml.nvmlDeviceGetUUID(device), memory=1000 * MIB)
        assert pynvml.nvmlDeviceGetMemoryInfo(device).used == 1037 * MIB
        whole = pynvml.nvmlDeviceGetMemoryInfo(calls.gpu(), version=pynvml.nvmlMemory_v2)
        assert whole.used == 1037 * MIB


@pytest.mark.parametrize("ask", UTILISATIONS)
def test_utilisation_is_not_supported_with_mig(ask: object) -> None:
    """Neither of the GPU nor of a MIG device; without MIG it is reported."""
    assert callable(ask)
    with calls.node_with("h100-80gb"):
        device = calls.create_device(calls.gpu(), "1g")
        for handle in (calls.gpu(), device):
            with pytest.raises(pynvml.NVMLError_NotSupported):
                ask(handle)
    with calls.node_with("h100-80gb", mig=False):
        ask(calls.gpu())


def test_aggregates_need_privilege_while_mig_is_on() -> None:
    """Memory and BAR1 of the whole GPU are not for an ordinary user then."""
    with calls.node_with("h100-80gb", privileged=False):
        for ask in (pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlDeviceGetBAR1MemoryInfo):
            with pytest.raises(pynvml.NVMLError_NoPermission):
                ask(calls.gpu())
    with calls.node_with("h100-80gb", mig=False, privileged=False):
        assert pynvml.nvmlDeviceGetBAR1MemoryInfo(calls.gpu()).bar1Total == 131072 * MIB


def test_remapped_rows_are_not_reported_with_instances() -> None:
    """Nor on a card before Ampere."""
    with calls.node_with("h100-80gb,t4"):
        assert pynvml.nvmlDeviceGetRemappedRows(calls.gpu()) == (0, 0, 0, 0)
        calls.create(calls.gpu(), "1g")
        for index in range(2):
            with pytest.raises(pynvml.NVMLError_NotSupported):
                pynvml.nvmlDeviceGetRemappedRows(calls.gpu(index))


def test_processes_have_no_utilisation() -> None:
    """Idle is not found, as on a card; with MIG it is not supported."""
    with calls.node_with("h100-80gb", mig=False), pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetProcessUtilization(calls.gpu(), 0)
    with calls.node_with("h100-80gb"), pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetProcessUtilization(calls.gpu(), 0)
