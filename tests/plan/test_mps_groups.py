"""A daemon of several GPUs: what the plan asks for, and steps of each, interleaved, cut short."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.documents.reading import read_document
from nodeagent.documents.writing import plan_document
from nodeagent.errors import DocumentError
from nodeagent.plan.desired import DesiredNode, MigDisabled, Reserved
from nodeagent.plan.observed import Access, Gpu, HealthLimits, ObservedNode
from nodeagent.plan.plan import NodePlan, Policy, Verdict
from nodeagent.plan.planner import layout_of, once_free, plan, plan_gpu
from nodeagent.plan.problems import Code
from nodeagent.plan.resolve import resolve
from nodeagent.plan.shares import WantedMps
from nodeagent.plan.steps import SetComputeMode, StartMps, Step, StopMps, after
from nodeagent.structs import replace
from tests.draws import draws
from tests.plan.cards import IN_USE, NOT_KNOWN, card
from tests.plan.daemons import (
    CLIENT,
    EXCLUSIVE,
    A,
    B,
    D,
    daemon,
    kinds,
    running,
    whole,
    without_mig,
)

FIRST, SECOND, THIRD = (
    without_mig(replace(card("h100-80gb"), index=index, uuid=f"GPU-{index}")) for index in range(3)
)
NODE = ObservedNode((FIRST, SECOND, THIRD))
TOGETHER = "mps: {clients: {memory: 8Gi}, together: true}"


def group(wanted: WantedMps, *gpus: Gpu) -> WantedMps:
    return replace(wanted, devices=tuple(gpu.uuid for gpu in gpus))


def planned(goals: Mapping[Gpu, WantedMps | None], *others: Gpu) -> NodePlan:
    desired = DesiredNode({gpu.uuid: whole(goal) for gpu, goal in goals.items()})
    return plan(desired, ObservedNode((*goals, *others)))


# --- the document ---------------------------------------------------------------------------------


def resolved(*entries: str, node: ObservedNode = NODE) -> dict[str, WantedMps | None]:
    text = f"{{version: v1, gpus: [{', '.join(f'{{{entry}}}' for entry in entries)}]}}"
    return {key: goal.mps for key, goal in resolve(read_document(text), node).gpus.items()}


def test_all_gpus_of_an_entry_have_the_same_daemon() -> None:
    """A later entry takes its GPUs out, as it does of any other entry."""
    small = replace(THIRD, memory=FIRST.memory // 2)
    node = ObservedNode((FIRST, SECOND, small))
    found = resolved("devices: all, mps: {replicas: 2, together: true}", node=node)
    assert len(set(found.values())) == 1
    wanted = found["GPU-0"]
    assert wanted is not None
    assert wanted.devices == ("GPU-0", "GPU-1", "GPU-2")
    assert wanted.sharing.memory_ceiling("GPU-0") == small.memory // 2**20 // 2
    found = resolved(f"devices: all, {TOGETHER}", "devices: [2], mig: disabled")
    assert [wanted and wanted.devices for wanted in found.values()] == [
        ("GPU-0", "GPU-1"),
        ("GPU-0", "GPU-1"),
        None,
    ]


def test_a_gpu_that_does_not_answer_stays_one_of_them() -> None:
    lost = replace(SECOND, access=Access.LOST)
    found = resolved(f"devices: [0, 1], {TOGETHER}", node=ObservedNode((FIRST, lost)))
    assert [wanted and wanted.devices for wanted in found.values()] == [("GPU-0", "GPU-1"), None]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([f"devices: [0], {TOGETHER}"], "found together for 1 GPUs that no later entry names"),
        (
            [f"devices: [0, 1], {TOGETHER}", "devices: [1], mig: disabled"],
            "found together for 1 GPUs that no later entry names",
        ),
        ([f"devices: [0, 1], mig: enabled, {TOGETHER}"], "GPU 0 is or will be in MIG mode"),
        ([f"devices: [0, 1], mig: {{1g.10gb: 1}}, {TOGETHER}"], "GPU 0 is or will be in MIG mode"),
        (["devices: [0, 1], mps: {clients: {memory: 90Gi}, together: true}"], "found 90Gi"),
    ],
)
def test_what_cannot_be_together(entries: list[str], message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        resolved(*entries)
    problem = caught.value.problems[0]
    assert problem.message.startswith(message)
    assert problem.path.startswith("gpus[0].mps.")


def test_more_than_a_daemon_has_limits_for() -> None:
    gpus = tuple(replace(FIRST, index=index, uuid=f"GPU-{index}") for index in range(33))
    with pytest.raises(DocumentError, match=r"33 GPUs .* one daemon serves 2 to 32"):
        resolved(f"devices: all, {TOGETHER}", node=ObservedNode(gpus))
    assert len(resolved(f"devices: all, {TOGETHER}", node=ObservedNode(gpus[1:]))) == 32


def test_mps_of_an_instance_is_its_own() -> None:
    with pytest.raises(DocumentError, match="together"):
        resolved(f"devices: [0], mig: [{{profile: 1g.10gb, {TOGETHER}}}]")


def test_a_group_is_exported_as_it_is() -> None:
    """Also beside another one with the same limits."""
    fourth = replace(THIRD, index=3, uuid="GPU-3")
    one, other = group(A, FIRST, THIRD), group(A, SECOND, fourth)
    node = [
        running(one, FIRST),
        running(other, SECOND),
        running(one, THIRD),
        running(other, fourth),
    ]
    observed = ObservedNode(tuple(node))
    desired = resolve(read_document(plan_document(observed)), observed)
    assert plan(desired, observed).verdict is Verdict.IN_SYNC
    assert desired.gpus["GPU-3"].mps == other


# --- steps ----------------------------------------------------------------------------------------


def test_the_first_gpu_starts_it_and_the_others_make_room() -> None:
    both = group(A, FIRST, SECOND)
    first, second = planned({FIRST: both, running(A, SECOND): both}).gpus
    assert (kinds(first), kinds(second)) == ([SetComputeMode, StartMps], [StopMps])
    assert (first.joined, second.joined) == (both.devices, ())
    assert planned({running(both, FIRST): both, running(both, SECOND): both}).steps == ()


def test_other_limits_are_set_while_it_runs() -> None:
    both, other = group(A, FIRST, SECOND), group(B, FIRST, SECOND)
    served = {running(both, gpu, CLIENT): other for gpu in (FIRST, SECOND)}
    first, second = planned(served).gpus
    assert [isinstance(step, StartMps) and step.runs for step in first.steps] == [True]
    assert second.verdict is Verdict.IN_SYNC


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (replace(SECOND, usage=IN_USE), "python"),
        (replace(SECOND, usage=NOT_KNOWN), "unknown users"),
        (running(A, SECOND, CLIENT), "train"),
        (running(group(A, SECOND, THIRD), SECOND, CLIENT), "train"),
        (replace(SECOND, access=Access.LOST, access_reason="XID 79"), "XID 79"),
        (replace(SECOND, health_limits=HealthLimits(whole=True, why="is hot")), "is hot"),
        (
            replace(
                SECOND, compute_mode=EXCLUSIVE, health_limits=HealthLimits(whole=True, why="is hot")
            ),
            "is hot",
        ),
        (None, "GPU-1 that gpus[0] names is gone"),
    ],
)
def test_one_that_is_not_ready_keeps_all_as_they_are(other: Gpu | None, why: str) -> None:
    """Nothing is stopped on one of them for a daemon that cannot come."""
    both = group(A, FIRST, SECOND)
    own = running(D, FIRST)
    desired = DesiredNode({"GPU-0": whole(both), "GPU-1": whole(both)})
    found = plan(desired, ObservedNode((own, other) if other else (own,)))
    assert found.gpus[0].verdict is Verdict.BLOCKED
    [problem] = found.gpus[0].problems
    assert problem.gpu == "GPU-0"
    assert problem.message.startswith("one MPS daemon is to serve it with others: ")
    assert why in problem.message
    assert found.steps == ()
    assert (once_free(found.gpus[0]) is None) is (problem.code is not Code.IN_USE)


def test_a_claim_on_one_of_them_keeps_it_from_all() -> None:
    both = group(A, FIRST, SECOND)
    held = Reserved("", None, "claim team/trainer", shared=True)
    goals = {"GPU-0": whole(both), "GPU-1": replace(whole(both), reserved=(held,))}
    ready = replace(SECOND, compute_mode=EXCLUSIVE)  # nothing is to be done on it
    first = plan(DesiredNode(goals), ObservedNode((FIRST, ready))).gpus[0]
    assert (first.verdict, first.problems[0].code) == (Verdict.BLOCKED, Code.IN_USE)
    assert "claim team/trainer" in first.problems[0].message


def test_clients_keep_the_daemon_on_every_gpu() -> None:
    """Whichever of them is to have something else."""
    both = group(A, FIRST, SECOND)
    for gpu in (FIRST, SECOND):
        for goal in (None, B, group(A, gpu, THIRD)):
            found = plan_gpu(whole(goal), running(both, gpu, CLIENT))
            assert (found.verdict, found.problems[0].code) == (Verdict.BLOCKED, Code.IN_USE)
            why = "the plan gives this device no MPS" if goal is None else "to serve other GPUs"
            assert f"{why}; it serves 2 GPUs)" in found.problems[0].message


def test_what_a_gpu_was_to_become_holds_before_and_after_its_daemon_comes() -> None:
    """It is read back while the first one's steps go on, at any time of them."""
    both = group(A, FIRST, SECOND)
    second = plan_gpu(whole(both), SECOND)
    goal = layout_of(second.after, second.goal)
    for seen in (second.after, replace(second.after, mps=daemon(both))):
        assert plan_gpu(goal, seen).verdict is Verdict.IN_SYNC


# --- all cuts of all orders -----------------------------------------------------------------------

GPUS = (FIRST, SECOND, THIRD)
GROUPS = [(FIRST, SECOND), (SECOND, THIRD), (FIRST, THIRD), GPUS]


@st.composite
def sharings(draw: st.DrawFn) -> dict[str, WantedMps | None]:
    """A daemon or none for each GPU, some of them together."""
    found = {gpu.uuid: draw(st.sampled_from([None, A, B])) for gpu in GPUS}
    if draw(st.booleans()):
        members = draw(st.sampled_from(GROUPS))
        both = group(draw(st.sampled_from([A, B, D])), *members)
        found |= {gpu.uuid: both for gpu in members}
    return found


def taken(step: Step, gpus: dict[str, Gpu]) -> dict[str, Gpu]:
    """All GPUs after a step of one: a daemon is there, or ends, on all that it serves."""
    uuid = step.gpu
    mps = gpus[uuid].mps
    if isinstance(step, StopMps):
        served = mps.runs.devices_on(uuid) if mps else ()
        assert not any(gpus[one].mps and gpus[one].usage.in_use for one in served)
        return {u: replace(g, mps=None) if u in served else g for u, g in gpus.items()}
    changed = {**gpus, uuid: after(gpus[uuid], [step])}
    if isinstance(step, StartMps):
        serves = step.wanted.devices_on(uuid)
        assert all(changed[one].compute_mode is EXCLUSIVE for one in serves)
        for one in serves:
            runs = gpus[one].mps
            assert runs is None or runs.runs.devices == step.wanted.devices
        changed = {
            u: replace(g, mps=daemon(step.wanted)) if u in serves else g for u, g in changed.items()
        }
    return changed


@settings(max_examples=draws(300))
@given(st.data())
def test_every_cut_of_every_order_leads_there(data: st.DataObject) -> None:
    """The steps of GPUs side by side, those that start a daemon for several after those of its
    other GPUs; cut anywhere and planned anew, as after a crash. What is in use is never stopped,
    and no GPU has two daemons.
    """
    has, goals = data.draw(sharings()), data.draw(sharings())
    gpus = {gpu.uuid: running(runs, gpu) if (runs := has[gpu.uuid]) else gpu for gpu in GPUS}
    busy = data.draw(st.sampled_from([None, None, *GPUS]))
    if busy is not None:
        used = gpus[busy.uuid]
        served = used.mps.runs.devices_on(busy.uuid) if used.mps else (busy.uuid,)
        for uuid in served if used.mps else ():
            gpus[uuid] = replace(gpus[uuid], mps=daemon(used.mps.runs, CLIENT))  # type: ignore[union-attr]  # it is there
        if used.mps is None:
            gpus[busy.uuid] = replace(used, usage=IN_USE)
    before = dict(gpus)
    off = MigDisabled("m")
    desired = DesiredNode({u: replace(whole(mps), mig=off) for u, mps in goals.items()})
    for _ in range(8):
        found = plan(desired, ObservedNode(tuple(gpus.values())), Policy())
        left = {one.before.uuid: list(one.steps) for one in found.gpus if one.steps}
        if not left:
            break
        others = {one.before.uuid: one.joined[1:] for one in found.gpus}
        cut = data.draw(st.integers(1, 9))
        while left and cut:
            due = [uuid for uuid in left if left.keys().isdisjoint(others[uuid])]
            gpus = taken(left[data.draw(st.sampled_from(due))].pop(0), gpus)
            left = {uuid: steps for uuid, steps in left.items() if steps}
            cut -= 1
    else:
        pytest.fail("never at rest")
    for gpu in before.values():
        if gpu.mps and gpu.mps.clients.in_use:
            now = gpus[gpu.uuid].mps
            assert now is not None
            assert now.runs.devices == gpu.mps.runs.devices
    if busy is None:
        assert {u: g.mps.runs if g.mps else None for u, g in gpus.items()} == goals
