"""The state outlives the agent: what is written down is read back the same."""

import json

import pytest
from msgspec import ValidationError

from nodeagent.health.findings import Moment
from nodeagent.health.state import HealthState
from nodeagent.health.state_file import decode, encode
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance, ObservedNode, Placement
from nodeagent.plan.users import Pod, Usage, User
from tests.health.rig import EPOCH, GPU, LOG, START, Node, gpu
from tests.health.test_check_table import RAISING


def _again(state: HealthState) -> HealthState:
    return decode(encode(state))


@pytest.mark.parametrize("cause", RAISING)
def test_every_finding_survives(node: Node, cause: str) -> None:
    """With all that was remembered beside it, through JSON text."""
    node.read(gpu(), known=frozenset({GPU}))
    RAISING[cause](node)
    assert _again(node.state) == node.state


def test_a_restart_changes_no_judgement() -> None:
    """An agent that starts anew in the middle finds and ends the same at the same time."""
    plain, restarted = Node(), Node()
    for node in (plain, restarted):
        node.read(gpu(), known=frozenset({GPU}))
        for cause in ("xidReset", "hwSlowdown", "nvlinkErrors"):
            RAISING[cause](node)
            if node is restarted:
                node.state = _again(node.state)
        node.read(resets=frozenset({GPU}))
    assert plain.causes() == restarted.causes() == {"hwSlowdown"}
    assert plain.state.repairs == restarted.state.repairs != ()


def test_a_clock_at_its_beginning_loses_nothing() -> None:
    """What was before 1970 by a clock that was never set is as old as that clock."""
    node = Node(ahead=-EPOCH - START)
    node.xid(95, source=LOG, at=START - 60.0)
    assert _again(node.state) == node.state
    assert node.one("xidReset").last == Moment(START - 60.0, 0.0)


EMPTY = json.loads(encode(HealthState()))


@pytest.mark.parametrize(
    "data",
    [
        *(None, []),
        {**EMPTY, "gpus": [1]},
        {**EMPTY, "at": [1.0, 1e300]},
        {**EMPTY, "at": [-1.0, 1.0]},
        {**EMPTY, "kernel_log_read": 1.5},
        {**EMPTY, "repairs": [{"gpu": "GPU-0", "xid": True, "wall": 1.0}]},
    ],
)
def test_anything_else_is_refused(data: object) -> None:
    """Also times out of the calendar's range."""
    with pytest.raises(ValidationError):
        decode(json.dumps(data).encode())


def test_a_finding_of_another_version_is_left_out(node: Node) -> None:
    """A cause that this version does not know cannot be judged by it."""
    node.xid(95)
    data = json.loads(encode(node.state))
    data["findings"].append({**data["findings"][0], "cause": "somethingNew"})
    for known in data["gpus"].values():
        known["checked"].append("somethingNew")
    assert decode(json.dumps(data).encode()) == node.state


# --- whom it hit ----------------------------------------------------------------------------------


def _user(pid: int, pod: str) -> User:
    return User(pid, "python", namespace="ml", pod=pod, container="main")


def _device(instance: int, start: int, *users: User) -> GpuInstance:
    usage = Usage(users)
    compute = ComputeInstance(0, "3g.40gb", 3, f"MIG-{instance}", usage=usage)
    return GpuInstance(instance, 9, "3g.40gb", Placement(start, 4), (compute,))


OBSERVED = ObservedNode(
    (
        Gpu(
            0,
            GPU,
            instances=(
                _device(1, 0, _user(11, "left")),
                _device(2, 4, _user(21, "right"), _user(22, "other"), User(23, "bash")),
            ),
        ),
    )
)


def test_the_pods_of_its_place_are_joined() -> None:
    """A whole GPU hits all of them, an instance its own, a known process its own pod alone."""
    node = Node(observed=OBSERVED)
    node.xid(79)
    node.xid(95, instance=2)
    node.xid(31, instance=2, pid=22)
    found = {f.cause: [p.name for p in f.pods] for f in node.state.findings}
    assert found == {
        "fallenOffBus": ["left", "other", "right"],
        "xidReset": ["other", "right"],
        "xidApplication": ["other"],
    }


@pytest.mark.parametrize(("compute", "pods"), [(0, ["other", "right"]), (1, [])])
def test_a_compute_instance_has_the_pods_that_are_on_it(compute: int, pods: list[str]) -> None:
    node = Node(observed=OBSERVED)
    node.xid(95, instance=2, compute=compute)
    assert [pod.name for pod in node.one("xidReset").pods] == pods


def test_who_was_hit_is_not_forgotten() -> None:
    """A pod that is gone is named until the finding ends."""
    node = Node(observed=OBSERVED)
    node.xid(95, instance=1)
    node.observed = ObservedNode((Gpu(0, GPU),))
    node.xid(95, instance=1)
    assert node.one("xidReset").pods == (Pod("ml", "left", "main"),)


def test_who_came_later_was_not_hit() -> None:
    """A look soon after shows who was there; an old finding takes up no one, however long it lasts.
    When an error comes again, those who are there by then are hit, too.
    """

    def used_by(*pods: str) -> ObservedNode:
        users = Usage(tuple(_user(pid, pod) for pid, pod in enumerate(pods, 1)))
        return ObservedNode((Gpu(0, GPU, usage=users),))

    node, sick = Node(observed=used_by("first")), gpu(ecc_uncorrected=1)
    node.read(sick)
    node.xid(95)
    node.observed = used_by("first", "soon")
    node.read(sick, after=5.0)
    node.observed = used_by("later")
    node.read(sick, after=60.0)
    pods = {f.cause: [pod.name for pod in f.pods] for f in node.state.findings}
    assert pods == {"eccUncorrected": ["first", "soon"], "xidReset": ["first", "soon"]}
    node.xid(95)
    assert [pod.name for pod in node.one("xidReset").pods] == ["first", "later", "soon"]


def test_the_process_that_is_known_later_was_hit_alone() -> None:
    """The kernel log names it after NVML did not; another one's error then hits that one, too."""
    node = Node(observed=OBSERVED)
    node.xid(31, instance=2)
    node.xid(31, instance=2, source=LOG, pid=22)
    assert [pod.name for pod in node.one("xidApplication").pods] == ["other"]
    node.xid(31, instance=2, source=LOG, pid=21, after=60.0)
    assert [pod.name for pod in node.one("xidApplication").pods] == ["other", "right"]


def test_as_many_pods_are_named_as_people_read(node: Node) -> None:
    """The newest of an error that never stops coming."""
    for number in range(200):
        users = Usage((_user(number + 1, f"pod-{number:03}"),))
        node.observed = ObservedNode((Gpu(0, GPU, usage=users),))
        node.xid(31, after=60.0)
    names = [pod.name for pod in node.one("xidApplication").pods]
    assert (len(names), names[-1]) == (50, "pod-199")
