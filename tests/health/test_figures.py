"""What figures of the driver come to: its own words, limits by the kind of link, two GPUs."""

from __future__ import annotations

import pytest

from nodeagent.health.fencing import as_fenced, fences
from nodeagent.health.readings import Fabric, InstanceReading, XidEvent, XidSource
from nodeagent.plan.observed import ObservedNode
from nodeagent.structs import replace
from tests.health.rig import ADDRESS, GPU, LEFT, RIGHT, Node, gpu
from tests.plan.cards import card

OTHER, OTHER_ADDRESS = "GPU-2", "00000000:1B:00.0"


@pytest.mark.parametrize(
    ("number", "words", "severity", "action"),
    [
        (1, "a GPU reset", "unhealthy", "reset GPU"),
        (2, "a node reboot", "unhealthy", "reboot"),
        (3, "draining peer-to-peer traffic", "degraded", "restart application"),
        (4, "draining and a GPU reset", "unhealthy", "reset GPU"),
        (5, "recovery of the IMEX domain", "degraded", "none"),
        (6, "a bus reset", "unhealthy", "reset GPU"),
        (7, "a system reboot", "unhealthy", "reboot"),
    ],
)
def test_what_the_driver_asks_for(number: int, words: str, severity: str, action: str) -> None:
    """Field value 230 of nvml.h, from 1 on."""
    node = Node()
    node.read(gpu(recovery_action=number))
    found = node.one("recoveryAction")
    assert words in found.evidence
    assert (found.severity.value, found.action.value) == (severity, action)


# A minute and lane, as DCGM has them; one of ten minutes is read each minute.
@pytest.mark.parametrize(
    ("generation", "limit"), [(1, 0.15), (2, 0.3), (3, 0.48), (4, 0.96), (5, 1.92), (6, 3.84)]
)
@pytest.mark.parametrize("lanes", [16, 8])
def test_replays_by_generation(generation: int, limit: float, lanes: int) -> None:
    """Just above the limit of the link's generation they are found, and just below they are not."""
    for share, expected in ((1.2, {"pcieReplays"}), (0.8, set[str]())):
        node = Node()
        for minute in range(20):
            count = int(100 + minute * limit * lanes * share)
            reading = gpu(pcie_replays=count, pcie_generation_max=generation, pcie_width=lanes)
            node.read(reading, after=60.0)
        assert node.causes() == expected


def test_lanes_that_sleep_make_no_more_replays() -> None:
    """The width falls while a GPU is idle, and its replays are those of the whole link."""
    node = Node()
    for minute in range(20):
        widths = {"pcie_width": 1, "pcie_width_max": 16}
        node.read(gpu(pcie_replays=minute * 4, pcie_generation_max=4, **widths), after=60.0)
    assert node.causes() == set()


@pytest.mark.parametrize(
    ("fabric", "evidence"),
    [
        (Fabric(3, summary=1), None),
        (Fabric(3, summary=2), "summary unhealthy"),
        (Fabric(3, summary=3), "summary limited capacity"),
        (Fabric(3, health_mask=0b01), "bandwidth"),
        (Fabric(3, health_mask=0b10), None),
        (Fabric(3, health_mask=0b01 << 2), "route recovery"),
        (Fabric(3, health_mask=0b01 << 4), "unhealthy route"),
        (Fabric(3, health_mask=0b01 << 6), "access timeout"),
        (Fabric(3, health_mask=1 << 8), None),
        (Fabric(3, health_mask=3 << 8), "incorrect configuration 3"),
    ],
)
def test_what_the_fabric_says(fabric: Fabric, evidence: str | None) -> None:
    """Two bits each, of which 1 is true and 2 is false, and the sum of it."""
    node = Node()
    node.read(gpu(fabric=fabric))
    if evidence is None:
        assert node.causes() == set()
    else:
        assert node.one("fabricDegraded").evidence == evidence


@pytest.mark.parametrize(
    ("known", "beside"),
    [
        ({"temperature": 88}, " (88 °C)"),
        ({"temperature": 88, "power": 651_400, "power_limit": 700_000}, " (88 °C, 651 of 700 W)"),
        ({"power": 651_400, "power_limit": 700_000}, " (651 of 700 W)"),
        ({"power": 651_400}, ""),
    ],
)
def test_heat_is_reported_with_what_is_known_beside_it(known: dict[str, int], beside: str) -> None:
    """Temperature, and power with its limit."""
    node = Node()
    for seconds in range(0, 320, 10):
        node.read(gpu(held_by_heat=seconds * 500_000_000, **known), after=10.0)
    assert node.one("throttledByHeat").evidence.endswith(f"of the last 300 s{beside}")


def test_two_gpus_with_the_same_fault_are_two_findings() -> None:
    """Reported by the kernel log at the same time, of GPUs whose addresses differ by a digit."""
    node = Node()
    pair = (gpu(), gpu(uuid=OTHER, pci_bus_id=OTHER_ADDRESS))
    node.read(*pair)
    events = tuple(
        XidEvent(95, node.now + 1, XidSource.KERNEL_LOG, pci=address.lower(), instance=1)
        for address in (ADDRESS, OTHER_ADDRESS)
    )
    node.read(*pair, xids=events)
    assert {found.place.gpu for found in node.state.findings} == {GPU, OTHER}


def test_a_fence_is_of_one_gpu() -> None:
    """Nothing is fenced on a neighbour, which is planned as before."""
    node = Node()
    sick = gpu(
        instances=(InstanceReading(1, LEFT, 0), InstanceReading(2, RIGHT, 1)), ecc_uncorrected=1
    )
    node.read(sick, gpu(uuid=OTHER, pci_bus_id=OTHER_ADDRESS))
    mine = replace(card("h100-80gb"), uuid=GPU)
    other = replace(mine, uuid=OTHER, index=1)
    observed = ObservedNode((mine, other))
    fenced = fences(node.state.findings, observed)
    assert (fenced.slices(GPU), fenced.slices(OTHER)) == (RIGHT.mask, 0)
    marked = as_fenced(observed, fenced, lambda finding, _: finding.cause)
    assert marked.gpus[0].health_limits.slices == RIGHT.mask
    assert marked.gpus[1] == other
