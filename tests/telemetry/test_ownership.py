"""Whose a device is: by allocations, by processes that were observed, by newer ones."""

from __future__ import annotations

from typing import Any

from nodeagent.cluster.kubelet.processes import Owner
from nodeagent.metrics.samples import SampleSet, Subject, Value, WholeGpu
from nodeagent.plan.observed import Access, DeviceDaemon, ObservedNode
from nodeagent.structs import replace
from nodeagent.telemetry.ownership import (
    FB_USED,
    GPU_UTIL,
    Device,
    DeviceUse,
    by_owner,
    claimed,
    pids_without_pod,
    uses,
)
from nodeagent.telemetry.samples import ProcessReading
from nodeagent.views.claims import Claim, ClaimDevice, ClaimPhase
from nodeagent.views.shapes import Pod
from tests.telemetry.nodes import GPU, MIB, divided, user, whole

A, B = Owner("team", "a", "main"), Owner("team", "b", "main")
WHOLE: Device = (GPU.uuid, None)
WHOLE_GPU = Subject(WholeGpu(GPU))
POWER = 155


def _no_owner(_: int) -> None:
    return None


def test_an_allocation_is_enough() -> None:
    """A pod holds its device before its first process."""
    found = uses(whole(user(0, "a")), {}, _no_owner)
    assert found[WHOLE].sole == A
    assert not found[WHOLE].memory


def test_each_pod_has_the_memory_of_its_processes() -> None:
    """It is that of all its processes; processes without a known owner count for none."""
    node = whole(
        user(0, "a"),
        user(1, "a", memory=5),
        user(2, "a", memory=6),
        user(3, "b", memory=7),
        user(4),
    )
    use = uses(node, {}, _no_owner)[WHOLE]
    assert use.owners == (A, B)
    assert use.sole is None
    assert use.memory == {A: 11 * MIB, B: 7 * MIB}


def test_newer_processes_take_the_place_of_observed_ones() -> None:
    """One that ended is gone; a new one belongs to whom its cgroup says."""
    node = whole(user(1, "a", memory=5), user(2, "b", memory=6))
    newer = {WHOLE: (ProcessReading(2, 8 * MIB, 40.0), ProcessReading(3, MIB, 2.0))}
    use = uses(node, newer, {3: Owner(unit="x.service")}.get)[WHOLE]
    assert use.owners == (Owner(unit="x.service"), B)
    assert use.memory == {B: 8 * MIB, Owner(unit="x.service"): MIB}
    assert use.multiprocessors == {B: 40.0, Owner(unit="x.service"): 2.0}
    assert uses(node, {WHOLE: ()}, _no_owner) == {}


def test_a_container_that_is_not_named_is_the_one_that_was_given_the_device() -> None:
    """So a pod is one owner, not one with and one without its container's name."""
    node = whole(user(0, "a"), replace(user(1, "a", memory=5), container=""))
    assert uses(node, {}, _no_owner)[WHOLE].memory == {A: 5 * MIB}


def test_an_mps_server_is_no_owner() -> None:
    """It is in the driver's lists as a process; its memory is the rest."""
    daemon = DeviceDaemon(runs=None, state="Ready", servers=(9,))  # type: ignore[arg-type]  # unused
    node = whole(user(1, "a"), mps=daemon)
    newer = {WHOLE: (ProcessReading(1, MIB), ProcessReading(9, 30 * MIB))}
    assert uses(node, newer, {9: Owner(unit="mps.service")}.get)[WHOLE].memory == {A: MIB}


def test_instances_are_distinguished() -> None:
    """Each has its own owners; one without any is not in the answer."""
    found = uses(divided({0: [user(1, "a")], 1: [user(2, "b")], 2: []}), {}, _no_owner)
    assert {device: use.sole for device, use in found.items()} == {
        (GPU.uuid, 0): A,
        (GPU.uuid, 1): B,
    }


def test_a_gpu_that_does_not_answer_has_no_owner() -> None:
    """What is known of it is old."""
    gpu = replace(whole(user(1, "a")).gpus[0], access=Access.UNKNOWN)
    assert uses(ObservedNode((gpu,)), {}, _no_owner) == {}


def test_only_processes_without_a_pod_are_looked_up() -> None:
    """Those that were observed without one, and those that are new."""
    node = whole(user(0, "a"), user(1, "a"), user(2))
    assert pids_without_pod(node, {WHOLE: (ProcessReading(1), ProcessReading(3))}) == {2, 3}


# --- claims ---------------------------------------------------------------------------------------

POD = Owner("team", "a")


def _claim(*devices: ClaimDevice, pods: tuple[Pod, ...]) -> Claim:
    return Claim(phase=ClaimPhase.READY, pods=list(pods), devices=list(devices), problems=[])


def _part(number: int | None, **known: Any) -> ClaimDevice:
    given = {"request": "r", "pool": "p", "device": "d", "gpu": GPU.uuid}
    return ClaimDevice(**{**given, "profile": "1g.10gb", "gi": number, **known})


def test_a_claim_gives_its_device_to_its_pods() -> None:
    """By the instance that was made; one that is not made, or only looked at, is nobody's."""
    pod = Pod(namespace="team", name="a", container="")
    other = Pod(namespace="team", name="b", container="main")
    claims = (
        _claim(_part(7), _part(None), _part(8, admin_access=True), pods=(pod,)),
        _claim(_part(None, profile=""), pods=(other,)),
        _claim(_part(9), pods=()),
    )
    assert claimed(claims) == {(GPU.uuid, 7): (POD,), (GPU.uuid, None): (B,)}
    assert claimed((*claims, _claim(_part(7), pods=(other,))))[GPU.uuid, 7] == (POD, B)


def test_a_claims_pod_has_the_device_before_it_is_observed() -> None:
    """A slice that was just made; but nothing is said of a GPU that does not answer."""
    held: dict[Device, tuple[Owner, ...]] = {(GPU.uuid, 7): (POD,)}
    node = divided({0: []})
    assert uses(node, {}, _no_owner, held)[GPU.uuid, 7].sole == POD
    lost = ObservedNode((replace(node.gpus[0], access=Access.LOST),))
    assert uses(lost, {}, _no_owner, held) == {}


def test_a_claims_pod_is_one_owner_with_its_process() -> None:
    """Whichever of the two knows the container."""
    for known, found in ((POD, A), (A, POD)):
        held = {WHOLE: (known,)}
        newer = {WHOLE: (ProcessReading(1, 5 * MIB),)}
        use = uses(whole(), newer, {1: found}.get, held)[WHOLE]
        assert use.owners == (A,)
        assert use.memory == {A: 5 * MIB}


def test_two_pods_of_a_claim_share_it() -> None:
    """Then it carries the labels of neither."""
    held = {WHOLE: (POD, B)}
    assert uses(whole(), {}, _no_owner, held)[WHOLE].owners == (POD, B)


# --- shared devices: the sum is the device's ------------------------------------------------------


def _split(used: int, use: DeviceUse, number: int = FB_USED) -> tuple[Value, ...]:
    sample = SampleSet({number: ((WHOLE_GPU, used),), POWER: ((WHOLE_GPU, 300),)})
    found = by_owner(sample, {(GPU.uuid, None): use})
    assert found.values[POWER] == ((WHOLE_GPU, 300),)
    return found.values[number]


def test_memory_of_each_and_the_rest() -> None:
    """Whole MiB, cut down, and what is left without an owner."""
    use = DeviceUse((A, B), {A: 1000 * MIB + 5, B: 500 * MIB})
    assert _split(1600, use) == (
        (Subject(WHOLE_GPU.entity, A.labels), 1000),
        (Subject(WHOLE_GPU.entity, B.labels), 500),
        (WHOLE_GPU, 100),
    )


def test_the_rest_is_never_below_nothing() -> None:
    """Lists of processes and the sum are not read at the very same moment."""
    assert _split(100, DeviceUse((A, B), {A: 200 * MIB}))[-1] == (WHOLE_GPU, 0)


def test_utilization_where_it_is_known_of_processes() -> None:
    """Percent of the GPU's time."""
    use = DeviceUse((A, B), {}, {A: 40.4, B: 20.0})
    assert [value for _, value in _split(70, use, GPU_UTIL)] == [40, 20, 10]


def test_what_cannot_be_split_stays_one_value() -> None:
    """Also where there is but one owner, whose labels it then has anyway."""
    assert _split(1600, DeviceUse((A, B))) == ((WHOLE_GPU, 1600),)
    assert _split(1600, DeviceUse((A,), {A: MIB})) == ((WHOLE_GPU, 1600),)
