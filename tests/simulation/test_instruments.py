"""Loads and figures that are put on a simulated card, and how long they last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest

from nodeagent.errors import UsageError
from nodeagent.simulation import SimulatedNode, simulated
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


def test_an_idle_card_says_the_same_for_ever() -> None:
    """Nothing grows before a load was put on."""
    with timed() as (_, clock):
        before = _reading()
        clock.now += 3600
        assert _reading() == before == (0, 70_000, 345, 30)


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


def test_loads_and_figures_are_in_the_state_file(tmp_path: Path) -> None:
    """Another process sees the same card."""
    state = tmp_path / "node.json"
    with simulated("h100-80gb", state=state) as node:
        node.load(0, 0.25)
        node.set_figures(0, {"temperature.gpu": 77})
        with simulated(state=state) as other:
            assert other.cards[0].sensors.value("temperature.gpu") == 77
            assert other.cards[0].sensors.load() == 0.25


@pytest.mark.parametrize(
    "spoil",
    [
        lambda node: node.set_figures(0, {"temperature.gup": 1}),
        lambda node: node.load(0, 1.5),
        lambda node: node.load(7, 1),
    ],
)
def test_what_makes_no_sense_is_refused(spoil: object) -> None:
    """A name, a share or a device that there is not."""
    assert callable(spoil)
    with calls.node_with("h100-80gb", mig=False) as node, pytest.raises(UsageError):
        spoil(node)


def test_a_gpu_in_mig_mode_has_no_work_of_its_own() -> None:
    """Only its instances do."""
    with calls.node_with("h100-80gb") as node, pytest.raises(UsageError, match="MIG mode"):
        node.load(0, 1)
