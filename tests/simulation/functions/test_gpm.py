"""GPM of simulated cards: what happened between two samples."""

from __future__ import annotations

from functools import partial
from typing import Any

import pynvml
import pytest

from nodeagent.simulation import SimulatedNode, Switches
from tests.simulation import calls


def metrics(
    first: Any, second: Any, *wanted: int, version: int = 1
) -> dict[int, tuple[int, float]]:
    """Return code and value of each metric."""
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = version, len(wanted)
    asked.sample1, asked.sample2 = first, second
    for index, metric in enumerate(wanted):
        asked.metrics[index].metricId = metric
    pynvml.nvmlGpmMetricsGet(asked)
    return {m.metricId: (m.nvmlReturn, m.value) for m in asked.metrics[: len(wanted)]}


def two_samples(node: SimulatedNode, instance: int | None = None) -> tuple[Any, Any]:
    """Ten seconds apart."""
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
    """Half of the time busy is a mean of 50 percent."""
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
            with pytest.raises(pynvml.NVMLError_NotSupported):
                pynvml.nvmlGpmSampleGet(calls.gpu(), sample)


def test_what_is_refused() -> None:
    """A version that was not set, samples never taken or of two devices, freed ones."""
    with calls.node_with("h100-80gb:2", mig=False) as node:
        first, second = two_samples(node)
        with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
            metrics(first, second, 1, version=0)
        empty = pynvml.nvmlGpmSampleAlloc()
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            metrics(first, empty, 1)
        pynvml.nvmlGpmSampleGet(calls.gpu(1), empty)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            metrics(first, empty, 1)
        pynvml.nvmlGpmSampleFree(second)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            metrics(first, second, 1)


def test_an_instance_without_compute_instance_has_no_data() -> None:
    """Nothing can run in it."""
    with calls.node_with("h100-80gb") as node:
        calls.create(calls.gpu(), "1g")
        instance = node.cards[0].state.instances[0]
        found = metrics(*two_samples(node, instance.id), 1)
        assert found[1][0] == pynvml.NVML_ERROR_NO_DATA
