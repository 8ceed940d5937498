"""Sensors, memory errors and links of simulated cards, and what cards do not have."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref
from typing import Any

import pynvml
import pytest

from nodeagent.simulation import SimulatorMisuse
from tests.simulation import calls

Ask = Callable[[Any], object]


def fields(device: Any, *wanted: int | tuple[int, int]) -> list[tuple[int, int]]:
    """Return code and unsigned value of each field."""
    found = pynvml.nvmlDeviceGetFieldValues(device, list(wanted))
    return [(field.nvmlReturn, field.value.uiVal) for field in found]


def test_thresholds_and_margin() -> None:
    """The margin is what is left until the slowdown."""
    with calls.node_with("h100-80gb", mig=False) as node:
        node.set_figures(0, {"temperature.gpu": 80})
        slowdown = pynvml.nvmlDeviceGetTemperatureThreshold(
            calls.gpu(), pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        )
        assert slowdown == 87
        assert pynvml.nvmlDeviceGetTemperatureV(calls.gpu(), pynvml.NVML_TEMPERATURE_GPU) == 80
        assert pynvml.nvmlDeviceGetMarginTemperature(calls.gpu()) == 7


NOT_THERE: list[tuple[str, Ask]] = [
    ("t4", pynvml.nvmlDeviceGetMarginTemperature),
    ("t4", pynvml.nvmlDeviceGetRowRemapperHistogram),
    ("t4", pynvml.nvmlDeviceGetUnrepairableMemoryFlag_v1),
    ("a100-80gb", pynvml.nvmlDeviceGetRepairStatus),
    ("a100-80gb", lambda gpu: pynvml.nvmlDeviceGetRetiredPages(gpu, 0)),
    ("h100-80gb", pynvml.nvmlDeviceGetFanSpeed),
    ("h100-80gb", pynvml.nvmlDeviceGetAutoBoostedClocksEnabled),
    ("t4", lambda gpu: pynvml.nvmlDeviceGetNvLinkErrorCounter(gpu, 0, 0)),
    ("gb200", lambda gpu: pynvml.nvmlDeviceGetNvLinkErrorCounter(gpu, 0, 0)),
]


@pytest.mark.parametrize(("board", "ask"), NOT_THERE)
def test_what_a_card_does_not_have(board: str, ask: Ask) -> None:
    """It is refused as not supported."""
    with calls.node_with(board, mig=False), pytest.raises(pynvml.NVMLError_NotSupported):
        ask(calls.gpu())


def test_field_values_have_a_code_each() -> None:
    """Those that a card lacks fail alone; links that it lacks are invalid."""
    ok, no, invalid = 0, pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT
    with calls.node_with("a100-80gb", mig=False) as node:
        node.set_figures(0, {"rows.correctable": 4, "nvlink.replay.2": 9})
        codes = fields(calls.gpu(), 142, 30, (161, 2), (161, 12), 209)
        assert codes == [(ok, 4), (no, 0), (ok, 9), (invalid, 0), (no, 0)]


def test_types_of_field_values() -> None:
    """The smallest that holds the value."""
    with calls.node_with("h100-80gb", mig=False) as node:
        node.set_figures(0, {"field.83": 1 << 40, "field.82": 1.5, "field.81": -3})
        large, real, negative = pynvml.nvmlDeviceGetFieldValues(calls.gpu(), [83, 82, 81])
    assert large.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    assert large.value.ullVal == 1 << 40
    assert (real.valueType, real.value.dVal) == (pynvml.NVML_VALUE_TYPE_DOUBLE, 1.5)
    assert (negative.valueType, negative.value.siVal) == (pynvml.NVML_VALUE_TYPE_SIGNED_INT, -3)


def test_remapped_rows_and_links_are_not_reported_with_instances() -> None:
    """Rows come back without them; links only without MIG."""
    no = pynvml.NVML_ERROR_NOT_SUPPORTED
    with calls.node_with("h100-80gb"):
        assert [code for code, _ in fields(calls.gpu(), 142, (161, 0))] == [0, no]
        calls.create_device(calls.gpu(), "1g")
        assert [code for code, _ in fields(calls.gpu(), 142, (161, 0))] == [no, no]
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetRemappedRows(calls.gpu())


def test_memory_errors_of_a_mig_device() -> None:
    """Only volatile uncorrected ones outside DRAM, of its own."""
    volatile, aggregate = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
    bad, sram = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_MEMORY_LOCATION_SRAM
    with calls.node_with("h100-80gb") as node:
        device = calls.create_device(calls.gpu(), "1g")
        uuid = pynvml.nvmlDeviceGetUUID(device)
        node.set_figures(uuid, {"ecc.uncorrected.volatile.7": 6})
        count = pynvml.nvmlDeviceGetMemoryErrorCounter
        assert count(device, bad, volatile, sram) == 6
        assert count(calls.gpu(), bad, volatile, sram) == 0
        for kind, since, place in (
            (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile, sram),
            (bad, aggregate, sram),
            (bad, volatile, pynvml.NVML_MEMORY_LOCATION_DRAM),
        ):
            with pytest.raises(pynvml.NVMLError_NotSupported):
                count(device, kind, since, place)


def test_retired_pages_by_two_calls() -> None:
    """Count first, then addresses."""
    with calls.node_with("t4") as node:
        node.set_figures(0, {"pages.doubleBit": 2})
        cause = pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR
        assert pynvml.nvmlDeviceGetRetiredPages(calls.gpu(), cause) == [0x1000, 0x2000]


def test_ports_of_the_newest_links() -> None:
    """Each counter of each port has its own code; only for root."""

    def read() -> list[tuple[int, int]]:
        counters = (pynvml.c_nvmlPRMCounter_v1_t * 2)()
        for entry, port in zip(counters, (1, 40), strict=True):
            entry.counterId, entry.inputValue.localPort = 307, port
        pynvml.nvmlDeviceReadPRMCounters_v1(
            calls.gpu(), pynvml.c_nvmlPRMCounterList_v1_t(2, counters)
        )
        return [(c.outputValue.status, c.outputValue.outputValue.ullVal) for c in counters]

    with calls.node_with("gb200", mig=False) as node:
        node.set_figures(0, {"prm.307.1": 12})
        assert read() == [(0, 12), (pynvml.NVML_ERROR_INVALID_ARGUMENT, 0)]
    ordinary = calls.node_with("gb200", mig=False, privileged=False)
    with ordinary, pytest.raises(pynvml.NVMLError_NoPermission):
        read()


def test_the_fabric_in_both_versions() -> None:
    """A structure whose version is another's is refused; any other structure is a misuse."""
    with calls.node_with("h100-80gb", mig=False) as node:
        node.set_figures(0, {"fabric.state": 2, "fabric.summary": 3})
        newer, older = pynvml.c_nvmlGpuFabricInfo_v3_t(), pynvml.c_nvmlGpuFabricInfo_v2_t()
        for info in (newer, older):
            pynvml.nvmlDeviceGetGpuFabricInfoV(calls.gpu(), byref(info))
            assert info.state == 2
        assert newer.healthSummary == 3
        older.version = 7
        with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
            pynvml.nvmlDeviceGetGpuFabricInfoV(calls.gpu(), byref(older))
        with pytest.raises(SimulatorMisuse):
            pynvml.nvmlDeviceGetGpuFabricInfoV(calls.gpu(), older)


def test_a_corrupt_inforom() -> None:
    """Its validation fails with its own code."""
    with calls.node_with("h100-80gb", mig=False) as node:
        assert pynvml.nvmlDeviceValidateInforom(calls.gpu()) is None
        node.set_figures(0, {"inforom.corrupt": 1})
        with pytest.raises(pynvml.NVMLError_CorruptedInforom):
            pynvml.nvmlDeviceValidateInforom(calls.gpu())


def test_processes_that_keep_the_gpu_busy() -> None:
    """A sample for each, none when no process is busy, and none older than asked for."""
    with calls.node_with("h100-80gb", mig=False) as node:
        node.occupy(0, pid=4711)
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetProcessUtilization(calls.gpu(), 0)
        node.set_figures(0, {"process.4711.sm": 60, "process.4711.memory": 20})
        (sample,) = pynvml.nvmlDeviceGetProcessUtilization(calls.gpu(), 0)
        assert (sample.pid, sample.smUtil, sample.memUtil) == (4711, 60, 20)


def test_peers_over_nvlink() -> None:
    """Two cards with links reach each other; without links not."""
    index = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
    for boards, expected in (
        ("h100-80gb:2", pynvml.NVML_P2P_STATUS_OK),
        ("h100-pcie:2", pynvml.NVML_P2P_STATUS_NOT_SUPPORTED),
    ):
        with calls.node_with(boards, mig=False):
            assert pynvml.nvmlDeviceGetP2PStatus(calls.gpu(0), calls.gpu(1), index) == expected
