from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pynvml
import pytest

from nodeagent.simulation import SimulatedNode, Switches
from tests.simulation import calls

Ask = Callable[[Any], object]


def fields(device: Any, *wanted: int | tuple[int, int]) -> list[tuple[int, int]]:
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
    with calls.node_with(board, mig=False), pytest.raises(pynvml.NVMLError_NotSupported):
        ask(calls.gpu())


def test_field_values_have_a_code_each() -> None:
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
        calls.refused("NotSupported", lambda: pynvml.nvmlDeviceGetRemappedRows(calls.gpu()))


def test_memory_errors_of_a_mig_device() -> None:
    volatile, aggregate = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
    bad, sram = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_MEMORY_LOCATION_SRAM
    with calls.node_with("h100-80gb") as node:
        device = calls.create_device(calls.gpu(), "1g")
        uuid = pynvml.nvmlDeviceGetUUID(device)
        node.set_figures(uuid, {"ecc.uncorrected.volatile.7": 6})
        count = pynvml.nvmlDeviceGetMemoryErrorCounter
        assert count(device, bad, volatile, sram) == 6
        assert count(calls.gpu(), bad, volatile, sram) == 0
        calls.refused(
            "NotSupported",
            lambda: count(device, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile, sram),
            lambda: count(device, bad, aggregate, sram),
            lambda: count(device, bad, volatile, pynvml.NVML_MEMORY_LOCATION_DRAM),
        )


def metrics(
    first: Any, second: Any, *wanted: int, version: int = 1
) -> dict[int, tuple[int, float]]:
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = version, len(wanted)
    asked.sample1, asked.sample2 = first, second
    for index, metric in enumerate(wanted):
        asked.metrics[index].metricId = metric
    pynvml.nvmlGpmMetricsGet(asked)
    return {m.metricId: (m.nvmlReturn, m.value) for m in asked.metrics[: len(wanted)]}


def two_samples(node: SimulatedNode, instance: int | None = None) -> tuple[Any, Any]:
    samples = []
    for now in (100.0, 110.0):
        node.clock = partial(float, now)
        sample = pynvml.nvmlGpmSampleAlloc()
        if instance is None:
            pynvml.nvmlGpmSampleGet(calls.gpu(), sample)
        else:
            pynvml.nvmlGpmMigSampleGet(calls.gpu(), instance, sample)
        samples.append(sample)
    return samples[0], samples[1]


def test_the_mean_between_two_samples() -> None:
    with calls.node_with("h100-80gb", mig=False) as node:
        node.clock = partial(float, 90)
        node.load(0, 0.5)
        found = metrics(*two_samples(node), 1, 10, 37, 166, 248)
        assert (found[1][0], found[10][0]) == (0, 0)
        assert (found[1][1], found[10][1]) == pytest.approx((50, 15))
        # H100 has seven decoders and no encoder, and this driver no cumulative metrics.
        assert [found[m][0] for m in (37, 166, 248)] == [pynvml.NVML_ERROR_NOT_SUPPORTED] * 3


@pytest.mark.parametrize("known", [False, True])
def test_a_gpu_in_mig_mode(known: bool) -> None:
    """Whether it has samples of the whole is a switch, since no source says."""
    with calls.node_with("h100-80gb", switches=Switches(gpm_of_mig_parent=known)):
        sample = pynvml.nvmlGpmSampleAlloc()
        if known:
            pynvml.nvmlGpmSampleGet(calls.gpu(), sample)
        else:
            calls.refused("NotSupported", lambda: pynvml.nvmlGpmSampleGet(calls.gpu(), sample))


def test_what_is_refused() -> None:
    with calls.node_with("h100-80gb:2", mig=False) as node:
        first, second = two_samples(node)
        calls.refused("ArgumentVersionMismatch", lambda: metrics(first, second, 1, version=0))
        empty = pynvml.nvmlGpmSampleAlloc()
        calls.refused("InvalidArgument", lambda: metrics(first, empty, 1))
        pynvml.nvmlGpmSampleGet(calls.gpu(1), empty)
        calls.refused("InvalidArgument", lambda: metrics(first, empty, 1))


XID, MIG_CHANGE = pynvml.nvmlEventTypeXidCriticalError, pynvml.nvmlEventMigConfigChange
NONE = 0xFFFFFFFF


@contextmanager
def _events(types: int, *indices: int) -> Iterator[Any]:
    events = pynvml.nvmlEventSetCreate()
    for index in indices or (0,):
        pynvml.nvmlDeviceRegisterEvents(calls.gpu(index), types, events)
    yield events
    pynvml.nvmlEventSetFree(events)


def test_every_event_comes_once_to_every_set() -> None:
    with calls.node_with() as node, _events(XID) as first, _events(XID) as second:
        for number in (13, 31):
            node.xid(0, number)
        for events in (first, second):
            got = [pynvml.nvmlEventSetWait_v2(events, 0) for _ in range(2)]
            assert [event.eventData for event in got] == [13, 31]
            assert got[0].gpuInstanceId == NONE
            with pytest.raises(pynvml.NVMLError_Timeout):
                pynvml.nvmlEventSetWait_v2(events, 0)
        with _events(XID) as late, pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait_v2(late, 0)


def test_what_can_be_registered() -> None:
    with calls.node_with("h100-80gb,t4"), _events(XID) as events:
        device, register = calls.create_device(calls.gpu(), "1g"), pynvml.nvmlDeviceRegisterEvents
        calls.refused(
            "NotSupported",
            lambda: register(calls.gpu(1), MIG_CHANGE, events),
            lambda: register(calls.gpu(0), 1 << 31, events),
            lambda: register(device, XID, events),
        )


def _reading() -> tuple[int, int, int, int]:
    gpu = calls.gpu()
    return (
        pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu),
        pynvml.nvmlDeviceGetPowerUsage(gpu),
        pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
    )


def test_a_reset_ends_loads_and_volatile_errors() -> None:
    with calls.node_with("h100-80gb", mig=False) as node:
        node.load(0, 1)
        node.set_figures(
            0, {"ecc.uncorrected.volatile": 3, "ecc.uncorrected.aggregate": 5, "recovery": 1}
        )
        node.reset(0)
        fields = pynvml.nvmlDeviceGetFieldValues(calls.gpu(), [4, 6, 230])
        assert [field.value.uiVal for field in fields] == [0, 5, 0]
        assert _reading() == (0, 70_000, 345, 30)
