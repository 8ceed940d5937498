"""An unhealthy slice is fenced alone, and what the driver's figures come to."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.health.fencing import Fences, as_fenced, fences, held_calls
from nodeagent.health.findings import Finding
from nodeagent.health.readings import Answer, Fabric, InstanceReading, Silence, XidEvent, XidSource
from nodeagent.plan.desired import DesiredGpu, DesiredNode, Layout, WantedInstance
from nodeagent.plan.observed import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    HealthLimits,
    MigMode,
    ObservedNode,
    Placement,
)
from nodeagent.plan.plan import Verdict
from nodeagent.plan.planner import plan
from nodeagent.plan.problems import Code
from nodeagent.plan.steps import CreateGpuInstance, DestroyGpuInstance
from nodeagent.structs import replace
from tests.health.rig import ADDRESS, GPU, LEFT, RIGHT, Node, gpu
from tests.plan.cards import card


def _instance(number: int, placement: Placement) -> GpuInstance:
    profile = next(p for p in CARD.profiles if p.name == "3g.40gb")
    devices = tuple(ComputeInstance(ci, "1c.3g.40gb", 1, f"MIG-{number}-{ci}") for ci in range(2))
    return GpuInstance(number, profile.id, "3g.40gb", placement, devices)


CARD: Gpu = replace(card("h100-80gb"), uuid=GPU)
SPLIT = ObservedNode((replace(CARD, instances=(_instance(1, LEFT), _instance(2, RIGHT))),))
EMPTY = ObservedNode((CARD,))


def _marked(observed: ObservedNode, fenced: Fences) -> ObservedNode:
    return as_fenced(observed, fenced, lambda finding, gpu: f"mend {finding.cause} of GPU {gpu}")


def _allows(fenced: Fences, gpu: str, placement: Placement) -> bool:
    return not fenced.slices(gpu) & placement.mask


def _sick(node: Node | None = None) -> Node:
    """The right instance has uncorrected errors."""
    node = node or Node()
    read = (InstanceReading(1, LEFT, 0), InstanceReading(2, RIGHT, 1))
    node.read(gpu(instances=read, ecc_uncorrected=1))
    return node


def test_the_siblings_of_a_sick_slice_go_on() -> None:
    fenced = fences(_sick().state.findings, SPLIT)
    assert fenced.gpus == frozenset()
    assert fenced.reasons.keys() == {"MIG-2-0", "MIG-2-1"}
    assert _allows(fenced, GPU, LEFT)
    assert not _allows(fenced, GPU, RIGHT)
    assert not _allows(fenced, GPU, Placement(7, 1))


def test_of_a_sick_compute_instance_only_its_own_device(node: Node) -> None:
    """Its sibling in the same GPU instance keeps its daemon; nothing new comes beside them."""
    node.xid(95, instance=2, compute=1)
    fenced = fences(node.state.findings, SPLIT)
    assert fenced.reasons.keys() == {"MIG-2-1"}
    assert not _allows(fenced, GPU, RIGHT)


def test_a_sick_gpu_is_fenced_whole(node: Node) -> None:
    node.xid(79)
    fenced = fences(node.state.findings, SPLIT)
    assert fenced.gpus == {GPU}
    assert fenced.reasons.keys() == {GPU, "MIG-1-0", "MIG-1-1", "MIG-2-0", "MIG-2-1"}
    assert not any(_allows(fenced, GPU, Placement(start, 1)) for start in range(8))
    assert _allows(fenced, "GPU-other", LEFT)


def test_what_is_not_unhealthy_is_not_fenced(node: Node) -> None:
    node.xid(31)
    node.xid(123)
    for _ in range(4):
        node.read(gpu(temperature=95, slowdown_temperature=90), after=30.0)
    node.read(gpu(answer=Answer(Silence.HANGS)))
    assert len(node.state.findings) == 4
    assert fences(node.state.findings, SPLIT) == Fences()


def test_the_fence_stays_with_the_slices() -> None:
    """When the sick instance is gone, what lies on its slices now is fenced; ids do not matter."""
    node = _sick()
    node.xid(95, instance=2)
    again = replace(CARD, instances=(_instance(2, LEFT), _instance(1, RIGHT)))
    node.read(gpu(instances=(InstanceReading(2, LEFT, 0), InstanceReading(1, RIGHT, 0))))
    fenced = fences(node.state.findings, ObservedNode((again,)))
    assert fenced.reasons.keys() == {"MIG-1-0", "MIG-1-1"}
    assert _allows(fenced, GPU, LEFT)


def test_an_instance_of_unknown_place_fences_the_gpu(node: Node) -> None:
    """Not knowing where the fault is, nothing is safe."""
    node.xid(95, instance=6)
    assert fences(node.state.findings, SPLIT).gpus == {GPU}


def test_the_reason_is_reported() -> None:
    """To the planner with what helps, and to each device; without figures that change."""
    fenced = fences(_sick().state.findings, SPLIT)
    (sick,) = _marked(SPLIT, fenced).gpus
    assert sick.health_limits == HealthLimits(
        0xF0, False, "it has uncorrected memory errors", "mend eccUncorrected of GPU 0"
    )
    assert fenced.reasons == dict.fromkeys(
        ["MIG-2-0", "MIG-2-1"], "it has uncorrected memory errors"
    )
    assert _marked(SPLIT, Fences()) == SPLIT


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (79, "it fell off the bus (XID 79)"),
        (95, "it reported an error that needs a GPU reset (XID 95)"),
    ],
)
def test_of_a_gpu_that_is_sick_as_a_whole_the_worst_is_reported(number: int, why: str) -> None:
    """What fences but a slice of it is not why all of it is fenced."""
    node = _sick()
    node.xid(number)
    (sick,) = _marked(SPLIT, fences(node.state.findings, SPLIT)).gpus
    assert sick.health_limits.whole
    assert sick.health_limits.slices == 0
    assert sick.health_limits.why == why


def test_without_mig_a_sick_slice_is_a_sick_gpu() -> None:
    """Nothing keeps work off some of its memory."""
    off = replace(CARD, mig=MigMode(current=False, pending=False))
    assert fences(_sick().state.findings, ObservedNode((off,))).gpus == {GPU}


@pytest.mark.parametrize(("number", "held"), [(79, True), (119, True), (120, True), (95, False)])
def test_calls_that_may_never_return_are_held(node: Node, number: int, held: bool) -> None:
    """After these XIDs nothing should be asked of the GPU."""
    node.xid(number)
    assert held_calls(node.state.findings) == ({GPU} if held else set())


def test_calls_wait_for_the_driver_to_be_bound(node: Node) -> None:
    """A GPU without its driver is not asked either."""
    node.read(gpu(answer=Answer(Silence.UNBOUND)))
    assert held_calls(node.state.findings) == {GPU}


# --- what the planner makes of it -----------------------------------------------------------------


def _wanted(*profiles: str) -> DesiredNode:
    slices = {p.name: p.slices for p in CARD.profiles}
    wanted = tuple(WantedInstance(name, slices[name], None, "plan") for name in profiles)
    return DesiredNode({GPU: DesiredGpu(Layout(wanted, "plan"), "plan")})


def _findings() -> tuple[Finding, ...]:
    return _sick().state.findings


def test_the_planner_keeps_what_runs_behind_the_fence() -> None:
    """A sick device that the plan has is as planned."""
    whole = tuple(
        replace(i, compute=(replace(i.compute[0], slices=3, profile="3g.40gb"),))
        for i in SPLIT.gpus[0].instances
    )
    observed = ObservedNode((replace(CARD, instances=whole),))
    answer = plan(_wanted("3g.40gb", "3g.40gb"), _marked(observed, fences(_findings(), SPLIT)))
    assert answer.verdict is Verdict.IN_SYNC


def test_a_layout_that_needs_the_fenced_slices_waits() -> None:
    fenced = fences(_findings(), EMPTY)
    answer = plan(_wanted("7g.80gb"), _marked(EMPTY, fenced))
    assert answer.verdict is Verdict.BLOCKED
    assert answer.gpus[0].problems[0].code is Code.GPU_UNHEALTHY
    assert answer.gpus[0].steps == ()


@given(
    st.lists(st.sampled_from(["1g.10gb", "2g.20gb", "3g.40gb"]), min_size=1, max_size=4),
    st.integers(0, 7),
    st.integers(1, 4),
)
@settings(max_examples=60)
def test_nothing_new_behind_any_fence(profiles: list[str], start: int, size: int) -> None:
    """Whatever is wanted and wherever the fence: no creation touches it."""
    sick = Placement(start, min(size, 8 - start))
    node = Node()
    node.read(gpu(instances=(InstanceReading(5, sick, 1),)))
    fenced = fences(node.state.findings, EMPTY)
    answer = plan(_wanted(*profiles), _marked(EMPTY, fenced))
    created = [s for s in answer.gpus[0].steps if isinstance(s, CreateGpuInstance)]
    assert all(_allows(fenced, GPU, step.placement) for step in created)
    assert not any(isinstance(s, DestroyGpuInstance) for s in answer.gpus[0].steps)
    if answer.verdict is Verdict.APPLICABLE:
        assert Counter(s.profile for s in created) == Counter(profiles)


# --- figures of the driver ------------------------------------------------------------------------


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
def test_what_the_driver_asks_for(
    node: Node, number: int, words: str, severity: str, action: str
) -> None:
    """Field value 230 of nvml.h, from 1 on."""
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


def test_lanes_that_sleep_make_no_more_replays(node: Node) -> None:
    """The width falls while a GPU is idle, and its replays are those of the whole link."""
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
def test_what_the_fabric_says(node: Node, fabric: Fabric, evidence: str | None) -> None:
    """Two bits each, of which 1 is true and 2 is false, and the sum of it."""
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
def test_heat_is_reported_with_what_is_known_beside_it(
    node: Node, known: dict[str, int], beside: str
) -> None:
    """Temperature, and power with its limit."""
    for seconds in range(0, 320, 10):
        node.read(gpu(held_by_heat=seconds * 500_000_000, **known), after=10.0)
    assert node.one("throttledByHeat").evidence.endswith(f"of the last 300 s{beside}")


def test_two_gpus_with_the_same_fault_are_two_findings(node: Node) -> None:
    """Reported by the kernel log at the same time, of GPUs whose addresses differ by a digit."""
    pair = (gpu(), gpu(uuid=OTHER, pci_bus_id=OTHER_ADDRESS))
    node.read(*pair)
    events = tuple(
        XidEvent(95, node.now + 1, XidSource.KERNEL_LOG, pci=address.lower(), instance=1)
        for address in (ADDRESS, OTHER_ADDRESS)
    )
    node.read(*pair, xids=events)
    assert {found.place.gpu for found in node.state.findings} == {GPU, OTHER}


def test_a_fence_is_of_one_gpu(node: Node) -> None:
    """Nothing is fenced on a neighbour, which is planned as before."""
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
