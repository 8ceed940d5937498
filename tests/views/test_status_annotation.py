import json
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import example, given, settings
from hypothesis import strategies as st

from nodeagent.plan.observed import (
    Access,
    ComputeInstance,
    Gpu,
    GpuInstance,
    MigMode,
    ObservedNode,
    Placement,
)
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.users import Usage
from nodeagent.structs import replace
from nodeagent.views.claims import Claim, ClaimPhase
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.shapes import Refused
from nodeagent.views.status_annotation import StatusAnnotation, has_looked, status_text
from tests.views.daemons import mps_client, mps_daemon
from tests.views.example_node import (
    AT,
    BLOCKED,
    DAEMON,
    DIGEST,
    FIRST,
    IN_SYNC,
    OBSERVED,
    SECOND,
    content_of,
)

LATER = AT + timedelta(hours=1)
MAX_BYTES = 32 * 1024  # of the 256 KiB that a Node's annotations share


# --- what it says ---------------------------------------------------------------------------------


def test_a_gpu_that_does_not_answer_counts_as_used() -> None:
    half = GpuInstance(9, 19, "1g.10gb", Placement(2, 1))
    lost = replace(
        OBSERVED.gpus[0], access=Access.LOST, instances=(*OBSERVED.gpus[0].instances, half)
    )
    gpu = content_of(replace(IN_SYNC, observed=ObservedNode((lost,))))["gpus"][0]
    assert gpu["access"] == "lost"
    assert all(instance["used"] for instance in gpu["instances"])
    assert gpu["instances"][2] == {"profile": "1g.10gb", "start": 2, "used": True}
    answers = replace(lost, access=Access.OK)
    gpu = content_of(replace(IN_SYNC, observed=ObservedNode((answers,))))["gpus"][0]
    assert {i["start"]: i["used"] for i in gpu["instances"]} == {
        0: False,
        1: False,
        2: False,
        4: True,
    }
    whole = replace(OBSERVED.gpus[1], access=Access.LOST, usage=Usage())
    gpu = content_of(replace(IN_SYNC, observed=ObservedNode((whole,))))["gpus"][0]
    assert (gpu["used"], gpu["instances"]) == (True, [])


def test_a_mode_that_waits_for_a_reset_is_reported() -> None:
    waits = replace(OBSERVED.gpus[1], mig=MigMode(current=False, pending=True))
    gpu = content_of(replace(IN_SYNC, observed=ObservedNode((waits,))))["gpus"][0]
    assert (gpu["mode"], gpu["pending"]) == ("disabled", "enabled")


NO_PLAN = replace(IN_SYNC, phase=Phase.NO_PLAN, digest="")


def test_a_node_without_gpus_and_a_card_without_mig() -> None:
    nothing = content_of(replace(NO_PLAN, observed=ObservedNode(), mps=()))
    assert nothing == {
        "headline": {"severity": "info", "text": "The node has no GPUs.", "code": "NoGpus"},
        "phase": "NoPlan",
        "source": "annotation",
        "message": "no plan yet",
        "gpus": [],
        "mps": [],
        "problems": [],
    }
    plain = replace(IN_SYNC, observed=ObservedNode((Gpu(0, "GPU-t4"),)), configuration="all-1g")
    content = content_of(plain)
    assert content["gpus"] == [{"uuid": "GPU-t4", "used": False, "instances": []}]
    assert content["configuration"] == "all-1g"


# --- when it changes ------------------------------------------------------------------------------


def test_claims_that_wait_are_counted() -> None:
    """Also while the next attempt at a refused one runs, so that attempts write nothing anew."""
    refusal = Problem(code=Code.IN_USE, message="in use")
    claims = tuple(
        Claim(uid=str(n), phase=phase, pods=[], devices=[], refusal=found, problems=[])
        for n, (phase, found) in enumerate((
            (ClaimPhase.WAITING, refusal),
            (ClaimPhase.RELEASING, refusal),
            (ClaimPhase.UNREADABLE, None),
            (ClaimPhase.WAITING, None),
            (ClaimPhase.READY, None),
        ))
    )  # fmt: skip
    assert content_of(replace(IN_SYNC, claims=claims))["claimsWaiting"] == 3
    assert content_of(replace(IN_SYNC, claims=()))["claimsWaiting"] == 0


def test_the_text_is_compact_and_has_its_moment() -> None:
    text = status_text(content_of(IN_SYNC), AT.astimezone(timezone(timedelta(hours=2))))
    assert text.startswith('{"headline":{"severity":"ok",')
    assert ',"phase":"InSync","observedAt":"2030-01-02T03:04:05.000Z","digest":' in text
    assert "\n" not in text


def test_the_text_changes_only_with_the_content() -> None:
    annotation = StatusAnnotation()
    first = annotation.text(content_of(IN_SYNC), existing=None, now=AT)
    again = replace(IN_SYNC, rounds=7, observed_at=LATER)
    assert annotation.text(content_of(again), existing=first, now=LATER) == first
    changed = annotation.text(content_of(BLOCKED), existing=first, now=LATER)
    assert changed
    assert json.loads(changed)["observedAt"] == "2030-01-02T04:04:05.000Z"


def test_a_restarted_agent_keeps_the_text_that_is_there() -> None:
    first = StatusAnnotation().text(content_of(IN_SYNC), existing=None, now=AT)
    assert StatusAnnotation().text(content_of(IN_SYNC), existing=first, now=LATER) == first
    assert StatusAnnotation().text(content_of(BLOCKED), existing=first, now=LATER) != first


NOT_OURS: tuple[str, ...] = (
    "",
    "no JSON",
    "[]",
    "[" * 100_000,
    '{"phase":"InSync"}',
    status_text(content_of(IN_SYNC), AT).replace("2030-01-02T03:04:05.000Z", "soon"),
    status_text(content_of(IN_SYNC), AT).replace("05.000Z", "05"),  # of no zone
    status_text(content_of(IN_SYNC), LATER + timedelta(days=1)),  # of tomorrow
    status_text(content_of(BLOCKED), AT),
    # That are no times in UTC:
    status_text(content_of(IN_SYNC), AT).replace(
        "2030-01-02T03:04:05.000Z", "0001-01-01T00:00:00+14:00"
    ),
    status_text(content_of(IN_SYNC), AT).replace(
        "2030-01-02T03:04:05.000Z", "9999-12-31T23:59:59-14:00"
    ),
)


def test_what_another_writer_wrote_is_not_believed() -> None:
    for there in NOT_OURS:
        text = StatusAnnotation().text(content_of(IN_SYNC), existing=there, now=LATER)
        assert text == status_text(content_of(IN_SYNC), LATER), there


def test_nothing_is_said_before_the_first_look() -> None:
    """So the annotation of the agent before stays; a driver that is not there is worth saying."""
    fresh = NodeState("gpu-node-0", "annotation")
    assert not has_looked(fresh)
    assert has_looked(replace(fresh, driver_error="the driver is not loaded"))


# --- that it fits ---------------------------------------------------------------------------------


def _crowded(gpus: int, problems: int, text: str) -> NodeState:
    """Full GPUs with a daemon and dozens of clients on each instance, and long complaints."""
    observed = tuple(
        Gpu(
            number,
            f"GPU-{number:08d}-1111-2222-3333-444444444444",
            mig=MigMode(current=True, pending=True),
            instances=tuple(
                GpuInstance(
                    start,
                    20,
                    "1g.10gb+me",
                    Placement(start, 1),
                    (ComputeInstance(0, "1g.10gb+me", 1, _mig(number, start)),),
                )
                for start in range(7)
            ),
        )
        for number in range(gpus)
    )
    daemons = tuple(
        mps_daemon(_mig(number, start), "Backoff", clients=(mps_client(1),) * 48)
        for number in range(gpus)
        for start in range(7)
    )
    problem = Problem(
        code=Code.UNKNOWN_CONFIGURATION, message=text, remedy=text, gpu=text, path=text
    )
    found = (problem,) * problems
    return NodeState(
        "n",
        "mig-config",
        Phase.REJECTED,
        DIGEST,
        text,
        Refused(digest=DIGEST, problems=found),
        text,
        ObservedNode(observed),
        AT,
        problems=found,
        mps=daemons,
    )


def _mig(gpu: int, start: int) -> str:
    return f"MIG-{gpu:08d}-1111-2222-3333-{start:012d}"


def test_no_command_is_cut() -> None:
    kill = f"`kill {' '.join(map(str, range(1000, 1100)))}`"
    problem = Problem(code=Code.IN_USE, message="in use", remedy=f"run `ps`, then {kill}")
    remedy = content_of(replace(IN_SYNC, problems=(problem,)))["problems"][0]["remedy"]
    assert remedy == "run `ps`, then …; in full: nodeagent status --problems"


@settings(max_examples=30)
@given(st.integers(0, 64), st.integers(0, 100), st.text(max_size=30), st.integers(0, 300))
@example(64, 100, "\N{GRINNING FACE}", 5000)  # characters that take more bytes
@example(64, 100, '"\\', 5000)
def test_it_always_fits(gpus: int, problems: int, text: str, times: int) -> None:
    content = content_of(_crowded(gpus, problems, text * times))
    written = status_text(content, datetime.now(UTC))
    assert len(written.encode()) <= MAX_BYTES
    assert written.isprintable()
    more = content.get("more", {})
    assert len(content["gpus"]) + more.get("gpus", 0) == gpus
    assert len(content["mps"]) + more.get("mps", 0) == 7 * gpus
    assert len(content["problems"]) + more.get("problems", 0) == problems


def test_sixteen_full_gpus_are_shown_whole() -> None:
    content = content_of(_crowded(16, 0, ""))
    assert "more" not in content
    assert len(status_text(content, AT)) < 24 << 10


def test_daemons_are_in_the_order_of_their_devices() -> None:
    """Those of devices that are gone come last, so that the text is always the same."""
    gone = mps_daemon("MIG-gone", "Down")
    first = mps_daemon(FIRST, "Ready")
    for order in ((gone, DAEMON, first), (first, gone, DAEMON)):
        content = content_of(replace(IN_SYNC, mps=order))
        assert [entry["device"] for entry in content["mps"]] == [FIRST, SECOND, "MIG-gone"]
    both = replace(first, devices=(FIRST, SECOND))
    [entry] = content_of(replace(IN_SYNC, mps=(both,)))["mps"]
    assert entry == {"device": FIRST, "devices": [FIRST, SECOND], "state": "Ready", "clients": 0}
