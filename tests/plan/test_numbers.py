"""The numbers that GPUs keep while others fall off the bus, come back or are exchanged."""

import pytest

from nodeagent.plan.numbers import NumberedGpu, numbered, numbers_of
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.structs import replace
from tests.plan.cards import card

A, B, C, D = (
    replace(card("h100-80gb"), uuid=f"GPU-{slot}", pci_bus_id=f"00000000:{slot}0:00.0")
    for slot in "abcd"
)


def _listed(*gpus: Gpu) -> ObservedNode:
    """As NVML lists them: from 0, without a gap."""
    return ObservedNode(tuple(replace(gpu, index=i) for i, gpu in enumerate(gpus)))


def _numbers(*rounds: ObservedNode) -> dict[str, int]:
    known: tuple[NumberedGpu, ...] = ()
    for observed in rounds:
        known = numbers_of(observed, known)
    return {one.uuid: one.number for one in known}


IN_THE_PLACE_OF_B = replace(C, pci_bus_id=B.pci_bus_id)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param((A, B, C), {"GPU-a": 0, "GPU-b": 1, "GPU-c": 2}, id="one more"),
        pytest.param((A,), {"GPU-a": 0, "GPU-b": 1}, id="one is gone"),
        pytest.param((C, A, B), {"GPU-a": 0, "GPU-b": 1, "GPU-c": 2}, id="a new one in front"),
        pytest.param((B, C, A), {"GPU-a": 0, "GPU-b": 1, "GPU-c": 2}, id="one more, moved"),
        pytest.param((A, IN_THE_PLACE_OF_B), {"GPU-a": 0, "GPU-c": 1}, id="exchanged"),
        pytest.param((B, D, C), {"GPU-a": 0, "GPU-b": 1, "GPU-d": 2, "GPU-c": 3}, id="two for one"),
        pytest.param((C, D), {"GPU-c": 0, "GPU-d": 1}, id="another machine"),
        pytest.param((), {"GPU-a": 0, "GPU-b": 1}, id="nothing is listed"),
    ],
)
def test_a_number_is_kept(now: tuple[Gpu, ...], expected: dict[str, int]) -> None:
    before, after = _listed(A, B), _listed(*now)
    assert _numbers(before, after) == expected
    assert _numbers(before, after, after) == expected
    assert len(set(expected.values())) == len(expected)


def test_a_gpu_that_is_gone_is_there_as_lost_under_its_number() -> None:
    """The one behind it is not taken for it."""
    node = numbered(_listed(B), numbers_of(_listed(A, B)))
    assert [(gpu.uuid, gpu.index) for gpu in node.gpus] == [("GPU-b", 1)]
    assert [(gpu.uuid, gpu.index, gpu.access) for gpu in node.gone] == [("GPU-a", 0, Access.LOST)]
