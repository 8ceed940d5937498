"""What accounts put into the records of use, over time that is made up here."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.cluster.kubelet.processes import Owner
from nodeagent.plan.observed import DeviceDaemon, ObservedNode
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from nodeagent.plan.users import Pod
from nodeagent.structs import Struct, replace
from nodeagent.telemetry.ownership import Device, DeviceUse
from nodeagent.telemetry.samples import ProcessReading
from nodeagent.use.records import Grant, Holder, Spread
from nodeagent.views.claims import Claim, ClaimDevice, ClaimPhase, ClaimShare
from nodeagent.views.node_state import Reading
from tests.draws import draws
from tests.telemetry.nodes import GPU, MIB, divided, user, whole
from tests.telemetry.use_rig import DAY, GAP, Agent
from tests.views.daemons import mps_client, mps_daemon

WHOLE: Device = (GPU.uuid, None)


# --- times ----------------------------------------------------------------------------------------

PODS = {  # and their workloads: by their names, and as the API server names them
    "web-7d9f8bcdf4-x2k4z": ("web", "web"),
    "web-7d9f8bcdf4-q8vbn": ("web", "web"),
    "db-0": ("db", "db"),
    "db-1": ("db", "db-1"),
    "one": ("one", "web"),
}
ANSWER = {("team", pod): named for pod, (_, named) in PODS.items()}


class Step(Struct, frozen=True):
    """What is there, by instance, for how long, and what happens after it."""

    passed: float
    pods: dict[int, frozenset[str]]
    active: dict[int, float]
    then: str


SOME_PODS = st.frozensets(st.sampled_from([*PODS]))
STEPS = st.lists(
    st.builds(
        Step,
        passed=st.sampled_from([0.5, 1.0, 7.25, 60.0, 119.0, 300.0]),
        pods=st.dictionaries(st.integers(0, 6), SOME_PODS, max_size=4),
        active=st.dictionaries(st.integers(0, 6), st.floats(0, 1)),
        then=st.sampled_from(["", "", "", "restart", "reboot", "clock set", "answer"]),
    ),
    max_size=12,
)


@settings(max_examples=draws(400), deadline=None)
@given(STEPS, st.booleans())
def test_totals_are_what_pods_held_and_used(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], asks: bool
) -> None:
    """Whatever is cut anew, restarted or set, and whenever workloads are named: nothing counts
    twice, and nothing is lost but what passed in a gap, over a reboot, or between two agents of
    whom only one saw the holder.
    """
    agent = Agent(tmp_path_factory.mktemp("use") / "use.json")
    held: dict[str, float] = defaultdict(float)
    used: dict[str, float] = defaultdict(float)
    before: Step | None = None
    away = 0.0  # between two agents
    for step in steps:
        if before is not None and step.passed + away <= GAP:
            for number, pods in (step if away else before).pods.items():
                for pod in pods & before.pods.get(number, frozenset()):
                    time = (step.passed + away) / len(pods)
                    held[PODS[pod][asks]] += time
                    if number in step.active:
                        goes_on = pod in step.pods.get(number, ())
                        used[PODS[pod][asks]] += time * step.active[number] * goes_on
        node = divided({n: [user(0, pod) for pod in pods] for n, pods in step.pods.items()})
        agent.see(node, step.passed, {(GPU.uuid, n): part for n, part in step.active.items()})
        reboot, away = step.then == "reboot", 30.0 * (step.then in {"restart", "reboot"})
        before = None if reboot else step
        if away:
            agent.restart(away, boot=f"{agent.boot}+" if reboot else "")
        elif step.then == "clock set":
            agent.wall -= 3 * DAY
        elif step.then == "answer" and asks:
            agent.accounts.name_workloads({pod: ANSWER[pod] for pod in agent.records.pods})
    if asks:
        agent.accounts.name_workloads(ANSWER)
    found = {use.holder.name: use for use in agent.records.uses()}
    assert {name: use.held for name, use in found.items()} == pytest.approx(held)
    assert {name: use.used for name, use in found.items()} == {
        name: pytest.approx(used[name], abs=1e-9) if name in used else None for name in held
    }


@pytest.mark.parametrize(
    ("away", "left"),
    [
        (0.0, {"new": 10.0, "old": 10.0}),
        (6 * DAY, {"new": 10.0, "old": 10.0}),
        (8 * DAY, {"new": 10.0}),
        (15 * DAY, {}),
        (-99 * DAY, {"new": 10.0, "old": 10.0}),
    ],
)
def test_seven_to_fourteen_days_count(tmp_path: Path, away: float, left: dict[str, float]) -> None:
    agent = Agent(tmp_path / "use.json")
    for pod in ("old", "new"):
        agent.see(whole(user(0, pod)))
        agent.see(whole())
        if pod == "old":
            agent.see(whole(), 7 * DAY)
    agent.restart(away)
    assert {name: use.held for (name, _), use in agent.uses.items()} == left


@pytest.mark.parametrize(
    ("days", "left", "later"),
    [(1, {"day"}, set()), (4, {"day", "week"}, {"day"}), (1024, {"day", "week"}, {"day"})],
)
def test_other_days_may_be_set(tmp_path: Path, days: int, left: set[str], later: set[str]) -> None:
    """What is too old for them is forgotten half of them later at most."""
    agent = Agent(tmp_path / "use.json")
    for pod, passed in (("week", 7 * DAY), ("day", DAY)):
        for node, seconds in ((whole(user(0, pod)), 1.0), (whole(), 10.0), (whole(), passed)):
            agent.see(node, seconds)
    agent.days = days
    agent.restart()
    assert {name for name, _ in agent.uses} == left
    for seconds in (1.0, days / 2 * DAY):
        agent.see(whole(), seconds)
    assert {name for name, _ in agent.uses} == later


def test_both_generations_are_one_record(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "use.json")
    for memory, passed in ((4, 10.0), (2, 7 * DAY)):
        for seconds in (passed, 10.0, 10.0):
            read = {WHOLE: Reading(memory=memory * MIB)}
            agent.see(whole(user(0, "a")), seconds, read=read)
    (use,) = agent.uses.values()
    assert (use.held, use.memory and use.memory.peak) == (40.0, 4 * MIB)
    agent.accounts.name_workloads({("team", "a"): "b"})
    assert agent.uses.keys() == {("b", "gpu")}
    assert agent.accounts.workloads == {("team", "a"): "b"}
    agent.accounts.name_workloads({("team", "gone"): "x"})
    for known, seconds in ((1, 10.0), (0, 601.0)):
        agent.see(whole(), seconds)
        assert len(agent.accounts.workloads) == known


# --- what was measured ----------------------------------------------------------------------------


def test_spreads_are_of_seconds() -> None:
    agent, node = Agent(), with_memory(divided({3: [user(0, "a")]}))
    part = (GPU.uuid, 3)
    for second in range(101):
        busy = 100.0 if second > 90 else 20.0
        memory = (9 if second == 50 else 3) << 30
        read = {part: Reading(memory=memory, utilization=busy, sm_active=busy / 2)}
        agent.see(node, 1.0, {part: busy / 100}, read=read)
    use = agent.uses["a", "1g.10gb"]
    step = 100 / 40
    about: Any = pytest.approx(20, abs=step)
    assert use.engine == Spread(about, 100.0, 100.0, 100.0)
    assert (use.sm and use.sm.peak, use.dram) == (50.0, None)
    assert use.memory
    assert use.memory.peak == 9 << 30
    assert 3 << 30 <= use.memory.p95 <= (3 << 30) + (10 << 30) / 40
    assert (use.grant.memory, use.at_limit) == (10 << 30, 0.0)


def with_memory(node: ObservedNode) -> ObservedNode:
    gpu = replace(node.gpus[0], name="NVIDIA H100 80GB HBM3", memory=80 << 30)
    return replace(node, gpus=(gpu,))


def test_memory_at_its_limit_and_idle_stretches() -> None:
    agent, node = Agent(), with_memory(whole(user(0, "a")))
    for active in (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0):
        read = {WHOLE: Reading(memory=(79 << 30) if active else 1)}
        agent.see(node, 30.0, {WHOLE: active}, read=read)
    (use,) = agent.uses.values()
    assert use.grant == Grant("gpu", "NVIDIA H100 80GB HBM3", 80 << 30)
    assert use.at_limit == 60.0
    assert (use.idle_stretches, use.longest_idle) == (1, 60.0)


@pytest.mark.parametrize("restarts", [(), (1,), (4,), (2, 6)])
def test_an_idle_stretch_is_one_over_restarts(tmp_path: Path, restarts: tuple[int, ...]) -> None:
    """Of two holders, of which one works at last; after a reboot of the machine they are others."""
    agent, node = Agent(tmp_path / "use.json"), divided({n: [user(0, f"p{n}")] for n in (3, 4)})
    for sample in range(9):
        agent.see(node, 30.0, {(GPU.uuid, 3): 0.0, (GPU.uuid, 4): float(sample == 8)})
        if sample in restarts:
            agent.restart(away=50.0)

    def idle() -> dict[str, float]:
        found = agent.accounts.samples()
        return {s.labels[-3]: s.value for s in found if s.metric == "nodeagent_held_idle_seconds"}

    found = {name: (use.idle_stretches, use.longest_idle) for (name, _), use in agent.uses.items()}
    away = 50.0 * len(restarts)
    assert found == {"p3": (1, 240.0 + away), "p4": (1, 210.0 + away)}
    assert idle() == {"p3": 240.0 + away, "p4": 0.0}
    # Of too long a gap nothing is known, and no more if the clock is another one.
    for gap, boot, more in ((0.0, "", 40.0), (200.0, "", 40.0), (-99.0, "", 40.0), (0.0, "2", -1)):
        agent.restart(gap, boot=boot)
        agent.see(node, 40.0, {(GPU.uuid, 3): 0.0, (GPU.uuid, 4): 0.0})
        assert idle() == {"p3": 240.0 + away + more if more > 0 else 0.0, "p4": 0.0}


def test_what_was_never_measured_is_not_used(tmp_path: Path) -> None:
    """And where it was for a while, that much at least."""
    agent, node = Agent(tmp_path / "use.json"), whole(user(0, "a"))

    def used() -> tuple[float | None, list[float]]:
        of_metric = (s for s in agent.accounts.samples() if "_used_" in s.metric)
        [use] = agent.uses.values()
        return use.used, [sample.value for sample in of_metric]

    for _ in range(3):
        agent.see(node)
    assert used() == (None, [])
    agent.see(node, active={WHOLE: 0.5})
    for _ in range(2):
        assert used() == (5.0, [5.0])  # of GPUs; a whole one has no slice-seconds
        agent.see(node)
    agent.restart()
    agent.see(node)
    assert used() == (5.0, [])
    assert {sample.value for sample in agent.accounts.samples()} == {0.0}  # counters begin anew


def test_who_shares_a_device_has_what_its_processes_do() -> None:
    """A share is of each client: of two of one holder the larger counts, also when it is alone."""
    limits = Sharing((Share("s", 2, memory=20 << 10, threads=50.0),), "report")
    daemon = DeviceDaemon(WantedMps(limits, Account(0, 0)), "Ready")
    node = with_memory(whole(mps=daemon))
    a, b = Owner("team", "a", "main"), Owner("team", "b", "main")
    clients = ProcessReading(1, 5 << 30, 10.0), ProcessReading(2, 4 << 30, 30.0)
    agent, alone, one, bare = Agent(), Agent(), Agent(), Agent()
    read = {WHOLE: Reading(memory=70 << 30, utilization=99.0)}
    for _ in range(2):
        agent.see(node, who={WHOLE: DeviceUse((a, b), {a: clients})}, read=read)
        alone.see(node, who={WHOLE: DeviceUse((a,), {a: clients})}, read=read)
        one.see(node, who={WHOLE: DeviceUse((a,), {a: clients[:1]})}, read=read)
        bare.see(with_memory(whole()), who={WHOLE: DeviceUse((a,), {a: clients})}, read=read)
    for has, of in (("share", one), ("gpu", bare)):  # the device's
        assert of.uses["a", has].engine == Spread(99.0, 99.0, 99.0, 10.0)
    use, other = agent.uses["a", "share"], agent.uses["b", "share"]
    assert alone.uses["a", "share"].memory == Spread(5 << 30, 5 << 30, 5 << 30, 10.0)
    assert (use.held, use.grant.memory, use.grant.threads) == (5.0, 20 << 30, 50.0)
    assert use.memory == Spread(5 << 30, 5 << 30, 5 << 30, 10.0)
    assert use.engine == Spread(30.0, 30.0, 30.0, 10.0)
    assert (other.held, other.memory, other.engine) == (5.0, None, None)


def test_of_several_kinds_of_share_each_has_its_own() -> None:
    """Until it is known whose a client is, what it does counts for no record."""
    kinds = Share("small", 2, 8 << 10, 25.0), Share("large", 1, 40 << 10, None)
    wanted = WantedMps(Sharing(kinds, "report"), Account(0, 0))
    pods = [("team", "a"), ("team", "b"), ("team", "c")]
    node = with_memory(whole(*(user(0, pod) for _, pod in pods), mps=DeviceDaemon(wanted, "Ready")))
    shares = zip(pods, ("small", "large", ""), strict=True)
    clients = tuple(mps_client(1, share=s, namespace=n, pod=p) for (n, p), s in shares)
    agent = Agent()
    for _ in range(2):
        agent.see(node, daemons=(mps_daemon(GPU.uuid, "Ready", wanted, clients=clients),))
    given = {u.holder.name: (u.grant.memory, u.grant.threads) for u in agent.records.uses()}
    assert given == {"a": (8 << 30, 25.0), "b": (40 << 30, 100.0)}


def test_the_share_of_a_claim_is_what_was_granted() -> None:
    agent, node = Agent(), with_memory(whole(user(0, "a")))
    share = ClaimShare(memory=8 << 30, threads=25.0)
    device = ClaimDevice(request="r", pool="p", device="d", gpu=GPU.uuid, share=share)
    pods = [Pod(namespace="team", name="a", container="main")]
    claim = Claim(phase=ClaimPhase.READY, pods=pods, devices=[device], problems=[])
    monitor = replace(device, share=ClaimShare(memory=1 << 30), admin_access=True)
    for _ in range(2):
        agent.see(node, claims=(claim, replace(claim, devices=[monitor])))
    (use,) = agent.uses.values()
    assert (use.grant.device, use.grant.memory, use.grant.threads) == ("share", 8 << 30, 25.0)


def test_a_client_without_limits_has_all_of_its_part() -> None:
    """Also where the daemon serves only one of the part's devices."""
    [gpu] = divided({3: [user(0, "a")]}).gpus
    [part] = gpu.instances
    limits = Sharing((Share("s", 2, None, None),), "report")
    daemon = DeviceDaemon(WantedMps(limits, Account(0, 0)), "Ready")
    served = replace(part.compute[0], id=1, uuid="MIG-served", mps=daemon)
    part = replace(part, compute=(*part.compute, served))
    agent = Agent()
    for _ in range(2):
        agent.see(ObservedNode((replace(gpu, instances=(part,)),)))
    (use,) = agent.uses.values()
    assert (use.grant.device, use.grant.memory) == ("share of 1g.10gb", 10 << 30)


def test_two_containers_of_a_pod_are_one_holder() -> None:
    """From the begin on, when they are not known yet."""
    agent = Agent()
    for containers in ([""], [""], ["main", "side"], ["main", "side"]):
        agent.see(whole(*(user(0, "a-0", container=name) for name in containers)))
    (use,) = agent.records.uses()
    assert use.holder == Holder("workload", "a", "team", "main,side")
    assert use.held == 30.0
    agent.see(whole(*(user(0, "b", container=f"container-{number}") for number in range(999))))
    agent.see(whole())
    assert len(agent.uses["b", "gpu"].holder.container) == 255


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        ("web-7d9f8bcdf4-x2k4z", "web"),
        ("llama-3-7d9f8bcdf4-x2k4z", "llama-3"),
        ("nightly-29384710-x2k4z", "nightly"),  # of a CronJob
        ("train-2-x2k4z", "train-2"),  # of a Job, or the third of an indexed one
        ("train-x2k4z", "train"),
        ("db-0", "db"),
        ("trainer", "trainer"),
        ("train-large", "train-large"),
    ],
)
def test_a_workload_is_told_by_its_pods_name(pod: str, workload: str) -> None:
    assert Holder("pod", pod).named("") == Holder("workload", workload)
