from typing import Any

from nodeagent.cluster.kubelet.processes import Owner
from nodeagent.metrics.samples import NvLink, SampleSet, Slice, Subject, Value, WholeGpu
from nodeagent.plan.observed import Access, DeviceDaemon, ObservedNode
from nodeagent.plan.users import Pod
from nodeagent.structs import replace
from nodeagent.telemetry import ownership
from nodeagent.telemetry.accounting import Accounts, activity, readings
from nodeagent.telemetry.samples import ProcessReading
from nodeagent.views.claims import Claim, ClaimDevice, ClaimPhase
from nodeagent.views.node_state import Reading
from tests.telemetry.nodes import GPU, MIB, divided, user, whole

A, B = Owner("team", "a", "main"), Owner("team", "b", "main")
WHOLE: ownership.Device = (GPU.uuid, None)
WHOLE_GPU = Subject(WholeGpu(GPU))
POWER = 155


def _no_owner(_: int) -> None:
    return None


def test_each_pod_has_the_memory_of_its_processes() -> None:
    node = whole(
        user(0, "a"),
        user(1, "a", memory=5),
        user(2, "a", memory=6),
        user(3, "b", memory=7),
        user(4),
    )
    use = ownership.uses(node, {}, _no_owner)[WHOLE]
    assert use.owners == (A, B)
    assert use.sole is None
    of_a = ProcessReading(1, 5 * MIB), ProcessReading(2, 6 * MIB)
    assert use.processes == {A: of_a, B: (ProcessReading(3, 7 * MIB),)}


def test_newer_processes_take_the_place_of_observed_ones() -> None:
    node = whole(user(1, "a", memory=5), user(2, "b", memory=6))
    newer = ProcessReading(2, 8 * MIB, 40.0), ProcessReading(3, MIB, 2.0)
    use = ownership.uses(node, {WHOLE: newer}, {3: Owner(unit="x.service")}.get)[WHOLE]
    assert use.owners == (Owner(unit="x.service"), B)
    assert use.processes == {B: newer[:1], Owner(unit="x.service"): newer[1:]}
    assert ownership.uses(node, {WHOLE: ()}, _no_owner) == {}


def test_a_container_that_is_not_named_is_the_one_that_was_given_the_device() -> None:
    unnamed, side = user(1, "a", memory=5, container=""), user(2, "a", memory=6, container="side")
    node = whole(user(0, "a"), user(0, "b"), unnamed, side)
    found = ownership.uses(node, {}, _no_owner)[WHOLE].processes
    pids = {owner: [one.pid for one in processes] for owner, processes in found.items()}
    assert pids == {A: [1], Owner("team", "b", "main"): [], Owner("team", "a", "side"): [2]}


def test_an_mps_server_is_no_owner() -> None:
    """It is in the driver's lists as a process; its memory is the rest."""
    daemon = DeviceDaemon(runs=None, state="Ready", servers=(9,))  # type: ignore[arg-type]  # unused
    node = whole(user(1, "a"), mps=daemon)
    newer = ProcessReading(1, MIB), ProcessReading(9, 30 * MIB)
    found = ownership.uses(node, {WHOLE: newer}, {9: Owner(unit="mps.service")}.get)
    assert found[WHOLE].processes == {A: newer[:1]}


def test_instances_are_distinguished() -> None:
    found = ownership.uses(divided({0: [user(1, "a")], 1: [user(2, "b")], 2: []}), {}, _no_owner)
    assert {device: use.sole for device, use in found.items()} == {
        (GPU.uuid, 0): A,
        (GPU.uuid, 1): B,
    }


def test_a_gpu_that_does_not_answer_has_no_owner() -> None:
    gpu = replace(whole(user(1, "a")).gpus[0], access=Access.UNKNOWN)
    assert ownership.uses(ObservedNode((gpu,)), {}, _no_owner) == {}


def test_only_processes_without_a_pod_are_looked_up() -> None:
    node = whole(user(0, "a"), user(1, "a"), user(2))
    assert ownership.pids_without_pod(node, {WHOLE: (ProcessReading(1), ProcessReading(3))}) == {
        2,
        3,
    }


# --- claims ---------------------------------------------------------------------------------------

POD = Owner("team", "a")


def _claim(*devices: ClaimDevice, pods: tuple[Pod, ...]) -> Claim:
    return Claim(phase=ClaimPhase.READY, pods=list(pods), devices=list(devices), problems=[])


def _part(number: int | None, **known: Any) -> ClaimDevice:
    given = {"request": "r", "pool": "p", "device": "d", "gpu": GPU.uuid}
    return ClaimDevice(**{**given, "profile": "1g.10gb", "gi": number, **known})


def test_a_claim_gives_its_device_to_its_pods() -> None:
    pod = Pod(namespace="team", name="a", container="")
    other = Pod(namespace="team", name="b", container="main")
    claims = (
        _claim(_part(7), _part(None), _part(8, admin_access=True), pods=(pod,)),
        _claim(_part(None, profile=""), pods=(other,)),
        _claim(_part(9), pods=()),
    )
    assert ownership.claimed(claims) == {(GPU.uuid, 7): (POD,), (GPU.uuid, None): (B,)}
    assert ownership.claimed((*claims, _claim(_part(7), pods=(other,))))[GPU.uuid, 7] == (POD, B)


def test_a_claims_pod_has_the_device_before_it_is_observed() -> None:
    held: dict[ownership.Device, tuple[Owner, ...]] = {(GPU.uuid, 7): (POD,)}
    node = divided({0: []})
    assert ownership.uses(node, {}, _no_owner, held)[GPU.uuid, 7].sole == POD
    lost = ObservedNode((replace(node.gpus[0], access=Access.LOST),))
    assert ownership.uses(lost, {}, _no_owner, held) == {}


def test_a_claims_pod_is_one_owner_with_its_process() -> None:
    for known, found in ((POD, A), (A, POD)):
        held = {WHOLE: (known,)}
        newer = {WHOLE: (ProcessReading(1, 5 * MIB),)}
        use = ownership.uses(whole(), newer, {1: found}.get, held)[WHOLE]
        assert use.owners == (A,)
        assert use.processes == {A: newer[WHOLE]}


# --- shared devices: the sum is the device's ------------------------------------------------------


def _of(memory: int | None = None, busy: float | None = None) -> ProcessReading:
    return ProcessReading(1, memory, busy)


def _split(
    used: int, use: ownership.DeviceUse, number: int = ownership.FB_USED
) -> tuple[Value, ...]:
    sample = SampleSet({number: ((WHOLE_GPU, used),), POWER: ((WHOLE_GPU, 300),)})
    found = ownership.by_owner(sample, {(GPU.uuid, None): use})
    assert found.values[POWER] == ((WHOLE_GPU, 300),)
    return found.values[number]


def test_memory_of_each_and_the_rest() -> None:
    use = ownership.DeviceUse(
        (A, B), {A: (_of(900 * MIB + 5), _of(100 * MIB)), B: (_of(500 * MIB),)}
    )
    assert _split(1600, use) == (
        (Subject(WHOLE_GPU.entity, A.labels), 1000),
        (Subject(WHOLE_GPU.entity, B.labels), 500),
        (WHOLE_GPU, 100),
    )


def test_the_rest_is_never_below_nothing() -> None:
    """Lists of processes and the sum are not read at the very same moment."""
    assert _split(100, ownership.DeviceUse((A, B), {A: (_of(200 * MIB),)}))[-1] == (WHOLE_GPU, 0)


def test_utilization_where_it_is_known_of_processes() -> None:
    use = ownership.DeviceUse((A, B), {A: (_of(busy=40.4),), B: (_of(busy=20.0),)})
    assert [value for _, value in _split(70, use, ownership.GPU_UTIL)] == [40, 20, 10]


def test_what_cannot_be_split_stays_one_value() -> None:
    assert _split(1600, ownership.DeviceUse((A, B))) == ((WHOLE_GPU, 1600),)
    assert _split(1600, ownership.DeviceUse((A,), {A: (_of(MIB),)})) == ((WHOLE_GPU, 1600),)


OF_GPU, PART_3 = Subject(WholeGpu(GPU)), Subject(Slice(GPU, "1g.10gb", 3))
TEAM_A, TEAM_B = (("", "team", name, "", "") for name in "ab")


def _values(accounts: Accounts, metric: str) -> dict[tuple[str, ...], float]:
    return {s.labels: s.value for s in accounts.samples() if s.metric == metric}


def _observe(
    accounts: Accounts, now: float, node: ObservedNode, active: dict[tuple[str, int | None], float]
) -> None:
    accounts.observe(now, node, ownership.uses(node, {}, lambda _: None), active)


def test_time_of_gpus_and_of_slices() -> None:
    accounts = Accounts(longest_gap=60)
    shared = whole(user(0, "a"), user(0, "b"))
    _observe(accounts, 0.0, shared, {WHOLE: 0.5})
    _observe(accounts, 10.0, shared, {WHOLE: 0.5})
    held = _values(accounts, "nodeagent_held_seconds_total")
    assert held == {TEAM_A: 5.0, TEAM_B: 5.0}
    assert _values(accounts, "nodeagent_used_seconds_total") == {TEAM_A: 2.5, TEAM_B: 2.5}
    assert not any(_values(accounts, "nodeagent_held_slice_seconds_total").values())
    parts = divided({3: [user(0, "c")]})
    _observe(accounts, 20.0, parts, {})
    _observe(accounts, 30.0, parts, {(GPU.uuid, 3): 1.0})
    assert _values(accounts, "nodeagent_held_slice_seconds_total")["", "team", "c", "", ""] == 10.0
    assert _values(accounts, "nodeagent_used_slice_seconds_total")["", "team", "c", "", ""] == 10.0
    assert _values(accounts, "nodeagent_held_seconds_total")["", "team", "c", "", ""] == 10.0 / 8


def test_idle_counts_from_the_first_look_that_found_nothing_done() -> None:
    accounts, node, part = Accounts(longest_gap=60), divided({3: [user(0, "a")]}), (GPU.uuid, 3)
    series = ("0", GPU.uuid, "1g.10gb", "3", "main", "team", "a", "", "")
    for now, active, expected in (
        (0.0, 0.0, 0.0),
        (10.0, 0.0, 10.0),
        (20.0, 0.4, 0.0),
        (30.0, 0.0, 0.0),
        (40.0, 0.0, 10.0),
    ):
        _observe(accounts, now, node, {part: active})
        assert _values(accounts, "nodeagent_held_idle_seconds") == {series: expected}
    _observe(accounts, 50.0, node, {})
    assert _values(accounts, "nodeagent_held_idle_seconds") == {}


def test_activity_is_gpms_where_it_is_there() -> None:
    gpu, part = Subject(WholeGpu(GPU)), Subject(Slice(GPU, "1g.10gb", 3))
    sample = SampleSet({203: ((gpu, 50),), 1001: ((part, 0.25), (gpu, 0.75))})
    assert activity(sample) == {WHOLE: 0.75, (GPU.uuid, 3): 0.25}
    assert activity(SampleSet({203: ((gpu, 50),)})) == {WHOLE: 0.5}


def test_time_that_stands_jumps_or_is_unknown_does_not_count() -> None:
    for later in (100.0, 90.0, 161.0):
        accounts, node = Accounts(longest_gap=60), whole(user(0, "a"))
        for now, expected in ((100.0, 0.0), (later, 0.0), (later + 1, 1.0)):
            _observe(accounts, now, node, {})
            assert _values(accounts, "nodeagent_held_seconds_total") == {TEAM_A: expected}


def test_a_hold_that_ended_has_its_last_interval() -> None:
    accounts = Accounts(longest_gap=60)
    for now, pod in ((0.0, "a"), (5.0, "b"), (7.0, "b")):
        _observe(accounts, now, whole(user(0, pod)), {WHOLE: 1.7})
    assert _values(accounts, "nodeagent_held_seconds_total") == {TEAM_A: 5.0, TEAM_B: 2.0}
    # Whatever a counter says, used is at most held.
    assert _values(accounts, "nodeagent_used_seconds_total") == {TEAM_A: 0.0, TEAM_B: 2.0}


def test_who_let_go_is_forgotten_after_a_while() -> None:
    accounts = Accounts(longest_gap=60, keep=30.0)
    for now, users, kept in ((0.0, [user(0, "a")], 1), (10.0, [], 1), (30.0, [], 1), (31.0, [], 0)):
        _observe(accounts, now, whole(*users), {})
        assert len(_values(accounts, "nodeagent_held_seconds_total")) == kept


def test_who_is_in_no_pod_has_the_label_of_its_kind() -> None:
    owners = {
        1: Owner(container="0123456789ab"),
        2: Owner(unit="train.service"),
        3: Owner(user="1000"),
    }
    accounts, node = Accounts(longest_gap=60), whole(*map(user, owners))
    for now in (0.0, 1.0):
        accounts.observe(now, node, ownership.uses(node, {}, owners.get), {})
    assert {(use.holder.kind, use.holder.name) for use in accounts.records.uses()} == {
        ("container", "0123456789ab"),
        ("unit", "train.service"),
        ("user", "1000"),
    }
    assert _values(accounts, "nodeagent_held_seconds_total").keys() == {
        ("0123456789ab", "", "", "", ""),
        ("", "", "", "train.service", ""),
        ("", "", "", "", "1000"),
    }


def test_each_device_has_what_was_read_of_it() -> None:
    sample = SampleSet(
        {
            150: ((OF_GPU, 64),),
            155: ((OF_GPU, 412.345),),
            203: ((OF_GPU, 37),),
            252: ((OF_GPU, 2048), (PART_3, 1)),
            1001: ((PART_3, 0.5),),
            1002: ((PART_3, 0.25),),
            1005: ((PART_3, 0.125),),
            **{number: ((OF_GPU, number),) for number in (158, 164, 100, 101, 112, 310, 311)},
            449: ((Subject(NvLink(GPU, 0)), 7),),
        }
    )
    assert readings(sample, activity(sample)) == {
        WHOLE: Reading(37.0, 64, 412.3, 2 << 30, 158, 164, 100, 101, 112, 310, 311),
        (GPU.uuid, 3): Reading(50.0, memory=1 << 20, sm_active=25.0, dram_active=12.5),
    }
