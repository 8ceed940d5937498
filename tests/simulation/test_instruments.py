"""Loads and figures that are put on a simulated card, and how long they last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pynvml
import pytest

from nodeagent.simulation import SimulatedNode
from tests.simulation import calls


class Clock:
    """Seconds that the test lets pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def timed(*, mig: bool = False) -> Iterator[tuple[SimulatedNode, Clock]]:
    """One H100 whose time the test has in its hand."""
    clock = Clock()
    with calls.node_with("h100-80gb", mig=mig) as node:
        node.clock = clock
        yield node, clock


def test_a_busy_card() -> None:
    """Power, clocks, temperature and energy follow from the load."""
    with timed() as (node, clock):
        node.load(0, 0.5)
        clock.now += 10
        energy, power, sm, degrees = _reading()
        assert (power, sm, degrees) == (385_000, 1980, 50)
        assert energy == 3_850_000  # 385 W for 10 s, in mJ
        assert pynvml.nvmlDeviceGetUtilizationRates(calls.gpu()).gpu == 50
        node.load(0, 0)
        clock.now += 10
        assert _reading() == (energy + 700_000, 70_000, 345, 30)


def _reading() -> tuple[int, int, int, int]:
    gpu = calls.gpu()
    return (
        pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu),
        pynvml.nvmlDeviceGetPowerUsage(gpu),
        pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
    )


def test_the_load_of_an_instance_is_that_share_of_the_card() -> None:
    """Two of seven slices, and nothing any more when the instance is gone."""
    with timed(mig=True) as (node, clock):
        calls.create_device(calls.gpu(), "2g")
        instance = node.cards[0].state.instances[0]
        node.load(f"0/{instance.id}/0", 1)
        clock.now += 1
        assert node.cards[0].sensors.load() == pytest.approx(2 / 7)
        with node.changes():
            node.cards[0].destroy_compute(instance, instance.compute[0])
            node.cards[0].destroy_instance(instance)
        assert _reading()[1:] == (70_000, 345, 30)


def test_a_figure_wins_until_it_is_taken_back() -> None:
    """Whatever would follow from the load."""
    with calls.node_with("h100-80gb", mig=False) as node:
        node.set_figures(0, {"power.usage": 99_000})
        node.load(0, 1)
        assert _reading()[1] == 99_000
        node.set_figures(0, {"power.usage": None})
        assert _reading()[1] == 700_000


def test_a_reset_ends_loads_and_volatile_errors() -> None:
    """What is kept in the card's InfoROM stays."""
    with calls.node_with("h100-80gb", mig=False) as node:
        node.load(0, 1)
        node.set_figures(
            0, {"ecc.uncorrected.volatile": 3, "ecc.uncorrected.aggregate": 5, "recovery": 1}
        )
        node.reset(0)
        fields = pynvml.nvmlDeviceGetFieldValues(calls.gpu(), [4, 6, 230])
        assert [field.value.uiVal for field in fields] == [0, 5, 0]
        assert _reading() == (0, 70_000, 345, 30)
