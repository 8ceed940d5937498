from typing import Any

import pytest

from nodeagent.cluster.drain.eviction import Evictions, asks_for_eviction, evictions
from nodeagent.cluster.drain.pods import Pod
from nodeagent.plan.desired import DesiredGpu, DesiredNode, MigDisabled, WhenInUse
from nodeagent.plan.observed import Access, DeviceDaemon, Gpu, HealthLimits, MigMode, ObservedNode
from nodeagent.plan.plan import Policy
from nodeagent.plan.planner import plan
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from nodeagent.plan.users import PodName, Usage, User
from nodeagent.structs import replace
from tests.cluster.drain.rig import used
from tests.plan.cards import NOT_KNOWN, card, wanted, with_instances

H100 = card("h100-80gb")
SEVEN = [("1g.10gb", start) for start in range(7)]
OFF = DesiredGpu(MigDisabled("gpus[0].mig"), "gpus[0]", WhenInUse.EVICT)
MPS = WantedMps(Sharing((Share("s", 1, None, None),), "report"), Account(1000, 1000))


def of(pod: str, pid: int = 1) -> User:
    """A process of a pod in the namespace team; without a pod when that is empty."""
    return User(pid, "python", namespace="team" if pod else "", pod=pod)


def chosen(gpu: Gpu, asked: DesiredGpu, *pods: Pod, reset: bool = True) -> Evictions:
    desired = DesiredNode({gpu.key: asked})
    policy = Policy(reset_when_idle=reset)
    made = plan(desired, ObservedNode((gpu,)), policy)
    return evictions(made, desired, policy, pods)


def evict(*counts: tuple[str, int]) -> DesiredGpu:
    return replace(wanted(H100, counts), when_in_use=WhenInUse.EVICT)


def names(found: Evictions) -> list[str]:
    return [pod.name for pod in found.wanted]


SEVEN_USED = used(with_instances(H100, SEVEN), *"abcdefg")


def test_only_those_in_the_way_go() -> None:
    found = chosen(SEVEN_USED, evict(("3g.40gb", 1), ("1g.10gb", 4)))
    assert names(found) == ["e", "f", "g"]
    assert not found.problems
    assert found.wanted[PodName("team", "e")] == (
        "it uses 1g.10gb at slice 4 of GPU 0, which has to change by the plan"
    )


def test_a_pod_that_has_ended_is_left_where_it_is() -> None:
    """The kubelet will give its device back; an eviction would take its log and its result away."""
    gpu = used(with_instances(H100, SEVEN[:2]), "a", "b")
    ended = Pod("team", "a", phase="Succeeded")
    found = chosen(gpu, OFF, ended, Pod("team", "b"))
    assert names(found) == ["b"]
    assert not found.problems


@pytest.mark.parametrize(
    "asked",
    [wanted(H100, [("7g.80gb", 1)]), evict(("1g.10gb", 7)), evict(("7g.80gb", 2))],
    ids=["wait", "in sync", "never fits"],
)
def test_no_pod_is_evicted_otherwise(asked: DesiredGpu) -> None:
    assert chosen(SEVEN_USED, asked) == Evictions()


def test_a_process_without_a_pod_keeps_the_pods() -> None:
    """Evictor the others would be in vain, and the problem names who really is in the way."""
    gpu = used(with_instances(H100, SEVEN[:2]), "a", "")
    found = chosen(gpu, evict(("7g.80gb", 1)))
    assert not found.wanted
    [problem] = found.problems
    assert "pid 101" in problem.message
    assert problem.gpu == gpu.uuid


def test_unknown_users_keep_the_pods() -> None:
    """Not knowing counts as use, and cannot be evicted."""
    gpu = used(with_instances(H100, SEVEN[:2]), "a", "-")
    first, _ = (instance.id for instance in gpu.instances)
    gpu = gpu.with_mig_devices(
        lambda instance, c: c if instance.id == first else replace(c, usage=NOT_KNOWN)
    )
    found = chosen(gpu, evict(("7g.80gb", 1)))
    assert (found.wanted, len(found.problems)) == ({}, 1)


@pytest.mark.parametrize("reset", [True, False])
def test_no_pod_goes_for_a_mode_that_waits_for_a_reset(reset: bool) -> None:
    """The agent may not reset, so it could only leave the mode pending, and the pods come back."""
    a100 = card("a100-40gb")
    off = MigMode(current=False, pending=False)
    gpu = replace(a100, mig=off, mode_change_needs_reset=True, usage=Usage((of("a", 100),)))
    asked = replace(wanted(a100, [("1g.5gb", 7)]), when_in_use=WhenInUse.EVICT)
    found = chosen(gpu, asked, Pod("team", "a"), reset=reset)
    assert names(found) == (["a"] if reset else [])
    if not reset:
        [problem] = found.problems
        assert "MIG mode of GPU 0" in problem.message
        assert "goes on only at a GPU reset" in problem.message
        assert "reset: whenIdle" in problem.remedy


def test_a_pod_that_comes_back_is_not_evicted() -> None:
    cases: list[tuple[Pod, str, str]] = [
        (
            Pod("team", "a", controller="DaemonSet", workload="web"),
            "its DaemonSet brings it back",
            "`kubectl edit daemonset -n team web`",
        ),
        (Pod("team", "a", mirror=True), "the kubelet runs it", "the manifest of a"),
    ]
    for fact, why, way in cases:
        gpu = used(with_instances(H100, SEVEN[:2]), "a", "b")
        found = chosen(gpu, evict(("7g.80gb", 1)), fact, Pod("team", "b", controller="ReplicaSet"))
        assert not found.wanted
        assert f"team/a ({why})" in found.problems[0].message
        assert way in found.problems[0].remedy


def test_a_pod_that_is_going_is_waited_for() -> None:
    gpu = used(with_instances(H100, SEVEN[:2]), "a", "b")
    found = chosen(gpu, evict(("7g.80gb", 1)), Pod("team", "a", terminating=True))
    assert (names(found), found.terminating) == (["b"], frozenset({PodName("team", "a")}))


def test_a_pod_is_evicted_once_whatever_it_holds() -> None:
    gpu = used(with_instances(H100, SEVEN[:3]), "a", "a", "b")
    found = chosen(gpu, evict(("7g.80gb", 1)))
    assert names(found) == ["a", "b"]
    assert "1g.10gb at slice 0, 1g.10gb at slice 1" in found.wanted[PodName("team", "a")]


def test_clients_of_mps_go_with_their_daemon() -> None:
    """A daemon's clients are users too, also where only the daemon knows them."""
    gpu = with_instances(H100, [("1g.10gb", 0)])
    daemon = DeviceDaemon(MPS, "Ready", pid=8, servers=(9,), clients=Usage((of("client", 77),)))
    usage = Usage((User(9, "server"),))
    gpu = gpu.with_mig_devices(lambda _, c: replace(c, mps=daemon, usage=usage))
    assert names(chosen(gpu, evict(("7g.80gb", 1)))) == ["client"]


def test_each_gpu_by_itself() -> None:
    busy = replace(used(with_instances(H100, SEVEN[:1]), ""), index=1, uuid="GPU-1")
    free = used(with_instances(H100, SEVEN[:1]), "a")
    asked = evict(("7g.80gb", 1))
    desired = DesiredNode({free.key: asked, busy.key: asked})
    made = plan(desired, ObservedNode((free, busy)))
    found = evictions(made, desired, Policy(), ())
    assert names(found) == ["a"]
    assert [problem.gpu for problem in found.problems] == ["GPU-1"]


def test_which_plans_ask_for_it() -> None:
    gpu, asked = SEVEN_USED, evict(("7g.80gb", 1))
    desired = DesiredNode({gpu.key: asked})
    made = plan(desired, ObservedNode((gpu,)))
    assert asks_for_eviction(made, desired)
    waiting = DesiredNode({gpu.key: replace(asked, when_in_use=WhenInUse.WAIT)})
    assert not asks_for_eviction(made, waiting)


TWO = tuple(
    replace(H100, mig=MigMode(current=False, pending=False), index=index, uuid=f"GPU-{index}")
    for index in range(2)
)
GONE = HealthLimits(whole=True, why="is hot")


@pytest.mark.parametrize(
    ("changes", "going"),
    [
        ({"access": Access.LOST, "access_reason": "XID 79"}, []),
        ({"health_limits": GONE}, []),
        ({"usage": Usage((of("", 7),))}, []),
        ({"usage": Usage((of("b", 7),))}, ["a", "b"]),
        ({}, ["a"]),
    ],
)
@pytest.mark.parametrize("busy", [0, 1])
def test_no_pod_goes_for_a_daemon_that_another_gpu_keeps_from_coming(
    changes: dict[str, Any], going: list[str], busy: int
) -> None:
    """Of one daemon for both; with nothing on the other GPU, or only what can be evicted."""
    group = replace(MPS, devices=("GPU-0", "GPU-1"))
    asked = replace(OFF, mps=group)
    gpus = [replace(gpu, **changes) for gpu in TWO]
    gpus[busy] = replace(TWO[busy], usage=Usage((of("a", 5),)))
    desired = DesiredNode({"GPU-0": asked, "GPU-1": asked})
    made = plan(desired, ObservedNode(tuple(gpus)))
    found = evictions(made, desired, Policy(), (Pod("team", "a"), Pod("team", "b")))
    assert sorted(names(found)) == going
    made = plan(desired, ObservedNode((gpus[busy],)))  # the other is not there
    assert names(evictions(made, desired, Policy(), (Pod("team", "a"),))) == []
