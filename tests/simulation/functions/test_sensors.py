"""Sensors, memory errors and links of simulated cards, and what cards do not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from tests.simulation import calls

Ask = Callable[[Any], object]


def fields(device: Any, *wanted: int | tuple[int, int]) -> list[tuple[int, int]]:
    """Return code and unsigned value of each field."""
    found = pynvml.nvmlDeviceGetFieldValues(device, list(wanted))
    return [(field.nvmlReturn, field.value.uiVal) for field in found]


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
