"""The order of what is done around a change, and that a crash anywhere is put right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from nodeagent.cluster.drain.eviction import Evictions
from nodeagent.cluster.drain.plan import (
    CORDONED,
    PAUSED,
    PLUGIN_CONFIG,
    RESTART_DUE,
    Rules,
    conclude,
    make_room,
    prepare,
)
from nodeagent.cluster.drain.steps import (
    AwaitAllocatable,
    AwaitPodsGone,
    ClientCare,
    DeletePods,
    EvictPod,
    NodeFacts,
    PatchNode,
    PodSelector,
    Step,
)
from nodeagent.plan.desired import DesiredGpu, DesiredNode
from nodeagent.plan.observed import MigMode, ObservedNode
from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.plan.planner import plan
from nodeagent.plan.shares import Account, Share, Sharing, TimeSlice, WantedMps
from tests.plan.cards import card, wanted, with_instances

PREFIX = "nvidia.com/gpu.deploy."
PLUGIN_POD = PodSelector({"app": "nvidia-device-plugin-daemonset"})
LABELS = {f"{PREFIX}device-plugin": "true", f"{PREFIX}dcgm": "false", f"{PREFIX}nvsm": "true"}
NODE = NodeFacts(labels=LABELS)
H100 = with_instances(card("h100-80gb"), [("7g.80gb", 0)])
EXPECTED = {"nvidia.com/mig-3g.40gb": 2}


def rules(care: ClientCare, *, cordon: bool = True) -> Rules:
    """The settings."""
    return Rules(care, cordon, (PLUGIN_POD,))


def planned(desired: DesiredGpu) -> NodePlan:
    """A plan for the H100."""
    return plan(DesiredNode({H100.key: desired}), ObservedNode((H100,)))


CHANGE = planned(wanted(H100, [("3g.40gb", 2)]))


def played(node: NodeFacts, steps: Iterable[Step]) -> NodeFacts:
    """The node after the patches among these steps, as the API server would merge them."""
    for step in steps:
        if isinstance(step, PatchNode):
            labels = {**node.labels, **step.labels}
            annotations = {**node.annotations, **step.annotations}
            cordoned = step.unschedulable
            node = replace(
                node,
                labels={k: v for k, v in labels.items() if v is not None},
                annotations={k: v for k, v in annotations.items() if v is not None},
                unschedulable=node.unschedulable if cordoned is None else cordoned,
            )
    return node


def kinds(steps: Iterable[Step]) -> list[str]:
    """What the steps are, in their order."""
    return [type(step).__name__ for step in steps]


def test_with_labels() -> None:
    """Cordon, pause what is true, wait for its pods; afterwards the labels, the offer, uncordon."""
    care = rules(ClientCare.PAUSE_LABELS)
    before = prepare(CHANGE, NODE, care)
    assert kinds(before) == ["PatchNode", "PatchNode", "AwaitPodsGone", "AwaitPodsGone"]
    assert before[1] == PatchNode(
        "what holds the GPUs is to go",
        labels={f"{PREFIX}device-plugin": PAUSED, f"{PREFIX}nvsm": PAUSED},
    )
    assert isinstance(before[2], AwaitPodsGone)
    assert before[2].selector == PLUGIN_POD
    during = played(NODE, before)
    assert during.unschedulable
    after = conclude(during, care, expected=EXPECTED)
    assert kinds(after) == ["PatchNode", "AwaitAllocatable", "PatchNode"]
    assert isinstance(after[1], AwaitAllocatable)
    assert after[1].expected == EXPECTED
    assert played(during, after) == NODE
    assert conclude(NODE, care) == ()


def test_with_the_plugins_pods() -> None:
    """Before, only the memory that they are due; afterwards they go, and then the memory."""
    care = rules(ClientCare.DELETE_PODS, cordon=False)
    before = prepare(CHANGE, NODE, care)
    assert [type(step) for step in before] == [PatchNode]
    during = played(NODE, before)
    assert during.annotations == {RESTART_DUE: "true"}
    assert prepare(CHANGE, during, care) == ()
    after = conclude(during, care, expected=EXPECTED)
    assert kinds(after) == ["DeletePods", "PatchNode", "AwaitAllocatable"]
    assert isinstance(after[0], DeletePods)
    assert after[0].selector == PLUGIN_POD
    assert played(during, after) == NODE


def test_with_nothing() -> None:
    """Nobody is told; what should be offered is still awaited."""
    care = rules(ClientCare.NOTHING, cordon=False)
    assert prepare(CHANGE, NODE, care) == ()
    assert kinds(conclude(NODE, care, expected=EXPECTED)) == ["AwaitAllocatable"]


@pytest.mark.parametrize("care", list(ClientCare))
@pytest.mark.parametrize("cordoned", [True, False], ids=["cordoned before", "schedulable"])
def test_a_crash_anywhere_is_put_right(care: ClientCare, cordoned: bool) -> None:
    """After every step the agent may die, and its settings change; the next start restores all."""
    node = replace(NODE, unschedulable=cordoned)
    before = prepare(CHANGE, node, rules(care))
    for done in range(len(before) + 1):
        during = played(node, before[:done])
        for later in ClientCare:
            after = conclude(during, rules(later, cordon=False))
            for cut in range(len(after) + 1):
                again = played(during, after[:cut])
                assert played(again, conclude(again, rules(later))) == node
            due = RESTART_DUE in during.annotations
            assert ("DeletePods" in kinds(after)) == due


def test_what_was_paused_before_a_crash_is_still_awaited() -> None:
    """The next attempt waits for the same pods, although it has nothing left to pause."""
    care = rules(ClientCare.PAUSE_LABELS, cordon=False)
    during = played(NODE, prepare(CHANGE, NODE, care)[:1])
    assert kinds(prepare(CHANGE, during, care)) == ["AwaitPodsGone", "AwaitPodsGone"]


def test_the_plugins_configuration_changes_with_its_return() -> None:
    """One patch for both, so the plugin starts with the right one; without a wish it stays."""
    care = rules(ClientCare.PAUSE_LABELS, cordon=False)
    during = played(NODE, prepare(CHANGE, NODE, care))
    [patch] = conclude(during, care, plugin_config="shared-4")
    assert isinstance(patch, PatchNode)
    assert patch.labels[PLUGIN_CONFIG] == "shared-4"
    assert patch.labels[f"{PREFIX}device-plugin"] == "true"
    done = played(during, [patch])
    assert conclude(done, care, plugin_config="shared-4") == ()
    assert conclude(done, care) == ()
    [other] = conclude(done, care, plugin_config="another")
    assert isinstance(other, PatchNode)
    assert other.labels == {PLUGIN_CONFIG: "another"}


SHARING = WantedMps(Sharing((Share("s", 1, None, None),), "report"), Account(1000, 1000))


def test_what_changes_no_device_disturbs_nobody() -> None:
    """MPS, time slices, a mode that only waits for a reset, and nothing at all."""
    off = replace(card("h100-80gb"), mig=MigMode(current=False, pending=False))
    shared = DesiredGpu(None, "gpus[0]", mps=SHARING)
    sliced = DesiredGpu(None, "gpus[0]", time_slice=TimeSlice.LONG)
    ampere = replace(card("a100-40gb"), mig=MigMode(current=False, pending=False))
    for gpu, desired in [
        (off, shared),
        (off, sliced),
        (ampere, wanted(ampere, [("1g.5gb", 7)])),
    ]:
        made = plan(DesiredNode({gpu.key: desired}), ObservedNode((gpu,)))
        assert made.steps
        assert not made.changes_devices
        assert prepare(made, NODE, rules(ClientCare.PAUSE_LABELS)) == ()
    assert not planned(wanted(H100, [("7g.80gb", 1)])).changes_devices
    assert CHANGE.changes_devices
    assert CHANGE.verdict is Verdict.APPLICABLE


def test_evictions_come_behind_the_cordon() -> None:
    """What is evicted would come back otherwise; without evictions nobody cordons for them."""
    pods = Evictions((EvictPod("work", "a", "in the way"),))
    steps = make_room(pods, NODE, rules(ClientCare.NOTHING))
    assert kinds(steps) == ["PatchNode", "EvictPod"]
    assert played(NODE, steps).annotations == {CORDONED: "true"}
    assert kinds(make_room(pods, NODE, rules(ClientCare.NOTHING, cordon=False))) == ["EvictPod"]
    assert make_room(Evictions(), NODE, rules(ClientCare.NOTHING)) == ()


def test_a_cordon_that_evictions_need_stays() -> None:
    """All else is put back meanwhile."""
    care = rules(ClientCare.PAUSE_LABELS)
    during = played(NODE, prepare(CHANGE, NODE, care))
    after = played(during, conclude(during, care, stays_cordoned=True))
    assert after.labels == NODE.labels
    assert after.unschedulable
    assert CORDONED in after.annotations
