"""Time held and used by each pod, and for how long what is held has done nothing."""

from __future__ import annotations

from nodeagent.cluster.kubelet.processes import Owner
from nodeagent.metrics import agent_metrics
from nodeagent.metrics.agent_metrics import AgentMetric
from nodeagent.metrics.samples import NvLink, SampleSet, Slice, Subject, WholeGpu
from nodeagent.plan.observed import ObservedNode
from nodeagent.telemetry.accounting import Accounts, activity, readings
from nodeagent.telemetry.ownership import uses
from nodeagent.views.node_state import Reading
from tests.telemetry.nodes import GPU, divided, user, whole

WHOLE = (GPU.uuid, None)
OF_GPU, PART_3 = Subject(WholeGpu(GPU)), Subject(Slice(GPU, "1g.10gb", 3))
TEAM_A, TEAM_B = (("", "team", name, "", "") for name in "ab")


def _values(accounts: Accounts, metric: AgentMetric) -> dict[tuple[str, ...], float]:
    return {s.labels: s.value for s in accounts.samples() if s.metric is metric}


def _observe(
    accounts: Accounts, now: float, node: ObservedNode, active: dict[tuple[str, int | None], float]
) -> None:
    accounts.observe(now, node, uses(node, {}, lambda _: None), active)


def test_time_of_gpus_and_of_slices() -> None:
    """A whole GPU counts as one; a slice as its part, and as slices; shared ones are divided."""
    accounts = Accounts(longest_gap=60)
    shared = whole(user(0, "a"), user(0, "b"))
    _observe(accounts, 0.0, shared, {WHOLE: 0.5})
    _observe(accounts, 10.0, shared, {WHOLE: 0.5})
    held = _values(accounts, agent_metrics.GPU_SECONDS_HELD)
    assert held == {TEAM_A: 5.0, TEAM_B: 5.0}
    assert _values(accounts, agent_metrics.GPU_SECONDS_USED) == {TEAM_A: 2.5, TEAM_B: 2.5}
    parts = divided({3: [user(0, "c")]})
    _observe(accounts, 20.0, parts, {})
    _observe(accounts, 30.0, parts, {(GPU.uuid, 3): 1.0})
    assert _values(accounts, agent_metrics.SLICE_SECONDS_HELD)["", "team", "c", "", ""] == 10.0
    assert _values(accounts, agent_metrics.SLICE_SECONDS_USED)["", "team", "c", "", ""] == 10.0
    assert _values(accounts, agent_metrics.GPU_SECONDS_HELD)["", "team", "c", "", ""] == 10.0 / 8


def test_idle_counts_from_the_first_look_that_found_nothing_done() -> None:
    """Work ends it; where activity is not known nothing is said."""
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
        assert _values(accounts, agent_metrics.HELD_IDLE) == {series: expected}
    _observe(accounts, 50.0, node, {})
    assert _values(accounts, agent_metrics.HELD_IDLE) == {}


def test_activity_is_gpms_where_it_is_there() -> None:
    """Utilization in percent stands in for it on older cards."""
    gpu, part = Subject(WholeGpu(GPU)), Subject(Slice(GPU, "1g.10gb", 3))
    sample = SampleSet({203: ((gpu, 50),), 1001: ((part, 0.25), (gpu, 0.75))})
    assert activity(sample) == {WHOLE: 0.75, (GPU.uuid, 3): 0.25}
    assert activity(SampleSet({203: ((gpu, 50),)})) == {WHOLE: 0.5}


def test_time_that_stands_jumps_or_is_unknown_does_not_count() -> None:
    """A clock that goes back and a gap that is too long add nothing, and take nothing away."""
    for later in (100.0, 90.0, 161.0):
        accounts, node = Accounts(longest_gap=60), whole(user(0, "a"))
        for now, expected in ((100.0, 0.0), (later, 0.0), (later + 1, 1.0)):
            _observe(accounts, now, node, {})
            assert _values(accounts, agent_metrics.GPU_SECONDS_HELD) == {TEAM_A: expected}


def test_a_hold_that_ended_has_its_last_interval() -> None:
    """Who lets go had it until then, and used what is not known; who comes begins then."""
    accounts = Accounts(longest_gap=60)
    for now, pod in ((0.0, "a"), (5.0, "b"), (7.0, "b")):
        _observe(accounts, now, whole(user(0, pod)), {WHOLE: 1.7})
    assert _values(accounts, agent_metrics.GPU_SECONDS_HELD) == {TEAM_A: 5.0, TEAM_B: 2.0}
    # Whatever a counter says, used is at most held.
    assert _values(accounts, agent_metrics.GPU_SECONDS_USED) == {TEAM_A: 0.0, TEAM_B: 2.0}


def test_who_let_go_is_forgotten_after_a_while() -> None:
    """The last values can still be scraped; after that nothing is kept."""
    accounts = Accounts(longest_gap=60, keep=30.0)
    for now, users, kept in ((0.0, [user(0, "a")], 1), (10.0, [], 1), (30.0, [], 1), (31.0, [], 0)):
        _observe(accounts, now, whole(*users), {})
        assert len(_values(accounts, agent_metrics.GPU_SECONDS_HELD)) == kept


def test_who_is_in_no_pod_has_the_label_of_its_kind() -> None:
    """A container, a unit or a user, and no pod's labels."""
    owners = {
        1: Owner(container="0123456789ab"),
        2: Owner(unit="train.service"),
        3: Owner(user="1000"),
    }
    accounts, node = Accounts(longest_gap=60), whole(*map(user, owners))
    accounts.observe(0.0, node, uses(node, {}, owners.get), {})
    assert _values(accounts, agent_metrics.GPU_SECONDS_HELD).keys() == {
        ("0123456789ab", "", "", "", ""),
        ("", "", "", "train.service", ""),
        ("", "", "", "", "1000"),
    }


def test_each_device_has_what_was_read_of_it() -> None:
    """In percent, degrees, watts and bytes; what was not read is not there, and links have none."""
    sample = SampleSet(
        {
            150: ((OF_GPU, 64),),
            155: ((OF_GPU, 412.345),),
            203: ((OF_GPU, 37),),
            252: ((OF_GPU, 2048), (PART_3, 1)),
            1001: ((PART_3, 0.5),),
            449: ((Subject(NvLink(GPU, 0)), 7),),
        }
    )
    assert readings(sample, activity(sample)) == {
        WHOLE: Reading(37.0, 64, 412.3, 2 << 30),
        (GPU.uuid, 3): Reading(utilization=50.0, memory=1 << 20),
    }
