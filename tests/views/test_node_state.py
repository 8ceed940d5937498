import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.plan.observed import Access, ComputeInstance, Gpu, GpuInstance, MigMode, Placement
from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import ComputeMode, TimeSlice
from nodeagent.plan.steps import SetComputeMode, SetTimeSlice, StartMps, StopMps
from nodeagent.plan.users import Usage, User
from nodeagent.structs import replace
from nodeagent.views.node_state import NodeState, Phase, not_ready, phase_of
from nodeagent.views.text import (
    compact_json,
    fitting,
    json_size,
    layout_words,
    one_line,
    shortened,
    step_words,
    user_words,
    users,
)
from tests.plan.daemons import CLIENT, A, daemon


def problems(*codes: Code) -> list[Problem]:
    return [Problem(code=code, message=f"the message of {code}") for code in codes]


PHASES: tuple[tuple[bool, Verdict | None, list[Code], Phase], ...] = (
    (False, Verdict.IN_SYNC, [], Phase.IN_SYNC),
    (False, None, [], Phase.NO_PLAN),
    (False, None, [Code.MPS], Phase.NO_PLAN),
    (False, Verdict.BLOCKED, [Code.IN_USE], Phase.BLOCKED),
    (False, Verdict.BLOCKED, [Code.RESET_REQUIRED], Phase.BLOCKED),
    (False, Verdict.BLOCKED, [], Phase.BLOCKED),
    (False, Verdict.IN_SYNC, [Code.OWNED], Phase.BLOCKED),
    (False, Verdict.BLOCKED, [Code.IN_USE, Code.GPU_LOST], Phase.FAILED),
    (False, Verdict.APPLICABLE, [Code.STEP_FAILED], Phase.FAILED),
    (False, Verdict.APPLICABLE, [], Phase.FAILED),
    (False, Verdict.UNSATISFIABLE, [Code.DOES_NOT_FIT], Phase.FAILED),
    (False, Verdict.APPLICABLE, [Code.DRIFT], Phase.FAILED),
    (True, Verdict.IN_SYNC, [], Phase.REJECTED),
    (True, Verdict.BLOCKED, [Code.STEP_FAILED], Phase.REJECTED),
)


def test_the_phase() -> None:
    """A refused document first, then what needs a person, then what only needs time."""
    for refused, verdict, codes, phase in PHASES:
        plan = NodePlan(verdict) if verdict else None
        assert phase_of(refused=refused, plan=plan, problems=problems(*codes)) is phase, refused


SENTENCES: tuple[tuple[NodeState, str], ...] = (
    (NodeState("n", "file", Phase.NO_PLAN), "no plan yet"),
    (NodeState("n", "file", Phase.NO_PLAN, note="it is not there"), "it is not there"),
    (NodeState("n", "file", Phase.IN_SYNC, "sha256:0"), "the node is as the plan says"),
    (
        NodeState("n", "file", Phase.IN_SYNC, "sha256:0", note="the file is gone"),
        "the node is as the plan says; the file is gone",
    ),
    (
        NodeState("n", "file", Phase.FAILED, problems=tuple(problems(*Code)[:3])),
        "the message of Syntax (and 2 more)",
    ),
    (NodeState("n", "file", Phase.WORKING), "working"),
)


def test_the_sentence() -> None:
    """What a person reads first."""
    for state, sentence in SENTENCES:
        assert state.sentence == sentence, state


def test_readiness_has_reasons() -> None:
    new = NodeState("n", "file", driver_error="the NVIDIA driver is not loaded")
    assert not_ready(new) == (
        "the driver does not answer: the NVIDIA driver is not loaded",
        "the first reconciliation is not done yet",
    )
    assert not_ready(NodeState("n", "file", rounds=1, observed_at=datetime.now(UTC))) == ()


ON = MigMode(current=True, pending=True)


def instance(number: int, profile: str, start: int, *pids: int) -> GpuInstance:
    usage = Usage(tuple(User(pid, "python") for pid in pids))
    device = ComputeInstance(0, profile, 1, f"MIG-{number}", usage=usage)
    return GpuInstance(number, 19, profile, Placement(start, 1), (device,))


GPU = Gpu(
    0,
    "GPU-0",
    mig=ON,
    instances=(
        instance(1, "1g.10gb", 1),
        instance(2, "1g.10gb", 0, 7, 8),
        GpuInstance(3, 9, "3g.40gb", Placement(4, 4)),
    ),
    usage=Usage((User(9, "Xorg"),)),
)


def test_steps_of_sharing() -> None:
    mig: tuple[str, Placement] = ("3g.40gb", Placement(4, 4))
    assert step_words(StopMps("GPU-0", "MIG-1", "", *mig)) == "stop MPS on 3g.40gb at 4"
    assert step_words(StartMps("GPU-0", "GPU-0", A, "")) == "start MPS"
    changed = StartMps("GPU-0", "MIG-1", A, "", *mig, runs=True)
    assert step_words(changed) == "change the limits of MPS on 3g.40gb at 4"
    mode = SetComputeMode("GPU-0", "GPU-0", ComputeMode.EXCLUSIVE_PROCESS, "")
    assert step_words(mode) == "set compute mode exclusiveProcess"
    assert step_words(SetTimeSlice("GPU-0", TimeSlice.LONG, "")) == "set the time slice to long"


def test_layouts() -> None:
    """Equal instances together, by slice; half-made ones apart; modes in words."""
    assert layout_words(GPU) == "1g.10gb at 0, 1; half-made 3g.40gb at 4"
    assert layout_words(replace(GPU, instances=())) == "no instances"
    assert layout_words(replace(GPU, mig=None)) == "no MIG"
    assert layout_words(replace(GPU, mig=MigMode(current=False, pending=False))) == "MIG off"
    pending = MigMode(current=False, pending=True)
    assert layout_words(replace(GPU, mig=pending)) == "MIG off, waiting for a GPU reset to change"
    assert layout_words(replace(GPU, access=Access.LOST)) == "a layout that is not known"


def test_layouts_with_mps() -> None:
    shared = replace(GPU.instances[0].compute[0], mps=daemon(A))
    other = replace(GPU.instances[0], compute=(shared,))
    gpu = replace(GPU, instances=(other, GPU.instances[1]))
    assert layout_words(gpu) == "1g.10gb at 0; 1g.10gb with MPS at 1"
    assert layout_words(replace(GPU, mig=None, mps=daemon(A))) == "no MIG, with MPS"
    sliced = replace(GPU, mig=None, time_slice=TimeSlice.LONG)
    assert layout_words(sliced) == "no MIG"
    ours = replace(sliced, earlier_time_slice=TimeSlice.DEFAULT)
    assert layout_words(ours) == "no MIG, time slice long"


def test_users() -> None:
    """Of one instance, or of all and of the GPU beside them."""
    assert user_words(GPU, 2) == "pid 7 (python), pid 8 (python)"
    assert user_words(GPU, 1) == ""
    assert [user.pid for user in users(GPU)] == [9, 7, 8]
    served = replace(GPU, mig=None, instances=(), mps=daemon(A, CLIENT))
    assert [user.pid for user in users(served)] == [9, 815]


LINES: tuple[tuple[str, str], ...] = (
    ("as it is", "as it is"),
    ("two\nlines\r\n and\ta tab", "two lines and a tab"),
    ("\x1b[31mred\x00\x7f", "[31mred"),
    ("turned\u202earound \ud800", "turned around"),
    ("Größe 8 – gut", "Größe 8 – gut"),
    ("", ""),
)


def test_one_line() -> None:
    """Nothing that is invisible, moves a cursor or cannot be encoded is left."""
    for text, line in LINES:
        assert line == one_line(text), text


@given(st.text(), st.integers(30, 80), st.sampled_from(["", "nodeagent events"]))
def test_shortened_text_is_never_longer_than_allowed(text: str, most: int, command: str) -> None:
    short = shortened(text, most=most, command=command)
    assert len(short) <= most
    assert short.isprintable()
    assert short == one_line(text) or short.endswith(command or "…")


@given(st.lists(st.text()), st.integers(2, 200))
def test_lists_are_cut_to_fit(entries: list[str], room: int) -> None:
    entries = [one_line(entry) for entry in entries]
    kept, left_out, size = fitting(entries, room)
    assert size == json_size(kept) <= room
    assert kept == entries[: len(kept)]
    assert len(kept) + left_out == len(entries)
    assert json.loads(compact_json(kept)) == kept
