from collections.abc import Iterable
from typing import Literal, get_args

import pytest

from nodeagent.cluster.client.node_view import CHANGING, NodeView, taints_with
from nodeagent.cluster.drain import changes
from nodeagent.cluster.drain.pods import PodSelector
from nodeagent.plan.desired import DesiredGpu, DesiredNode
from nodeagent.plan.observed import MigMode, ObservedNode
from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.plan.planner import plan
from nodeagent.plan.shares import Account, Share, Sharing, TimeSlice, WantedMps
from nodeagent.settings import KubernetesSettings
from nodeagent.structs import replace
from tests.plan.cards import card, wanted, with_instances

Care = Literal["pauseLabels", "deletePods", "nothing"]
CARES: tuple[Care, ...] = get_args(Care)
PREFIX = "nvidia.com/gpu.deploy."
PLUGIN_POD = PodSelector({"app": "nvidia-device-plugin-daemonset"})
PLUGIN_PODS = (PLUGIN_POD,)
LABELS = {f"{PREFIX}device-plugin": "true", f"{PREFIX}dcgm": "false", f"{PREFIX}nvsm": "true"}
NODE = NodeView(labels=LABELS)
H100 = with_instances(card("h100-80gb"), [("7g.80gb", 0)])


def rules(care: Care, *, cordon: bool = True, taints: bool = False) -> KubernetesSettings:
    return KubernetesSettings(clients=care, cordon=cordon, taints=taints)


def planned(desired: DesiredGpu) -> NodePlan:
    return plan(DesiredNode({H100.key: desired}), ObservedNode((H100,)))


CHANGE = planned(wanted(H100, [("3g.40gb", 2)]))


def played(node: NodeView, made: Iterable[changes.NodeChange]) -> NodeView:
    """The node after these changes, as the API server would merge them."""
    for change in made:
        labels = {**node.labels, **change.labels}
        annotations = {**node.annotations, **change.annotations}
        cordoned, changing = change.unschedulable, change.changing
        taints = node.taints
        if changing is not None:
            taints = tuple(taints_with(taints, {CHANGING: changing}))
        node = replace(
            node,
            labels={k: v for k, v in labels.items() if v is not None},
            annotations={k: v for k, v in annotations.items() if v is not None},
            unschedulable=node.unschedulable if cordoned is None else cordoned,
            taints=taints,
        )
    return node


def restored(node: NodeView) -> tuple[changes.NodeChange, ...]:
    uncordon = changes.uncordoning(node)
    return (*changes.restorations(node, PLUGIN_PODS), *([uncordon] if uncordon else []))


@pytest.mark.parametrize("cordon", [True, False], ids=["with a cordon", "alone"])
def test_with_a_taint(cordon: bool) -> None:
    """It comes and goes with the cordon, among others' taints; once there, it is not put again."""
    care = rules("nothing", cordon=cordon, taints=True)
    node = replace(NODE, taints=({"key": "other", "effect": "NoExecute", "value": "x"},))
    [before] = changes.preparations(node, care)
    during = played(node, [before])
    assert during.unschedulable is cordon
    assert during.taints == (*node.taints, {"key": CHANGING, "effect": "NoSchedule"})
    assert changes.preparations(during, care) == ()
    assert played(during, restored(during)) == node


@pytest.mark.parametrize("care", CARES)
@pytest.mark.parametrize("cordoned", [True, False], ids=["cordoned before", "schedulable"])
def test_a_crash_anywhere_is_put_right(care: Care, cordoned: bool) -> None:
    node = replace(NODE, unschedulable=cordoned)
    before = changes.preparations(node, rules(care))
    for done in range(len(before) + 1):
        during = played(node, before[:done])
        after = restored(during)
        for cut in range(len(after) + 1):
            again = played(during, after[:cut])
            assert played(again, restored(again)) == node
        due = changes.RESTART_DUE in during.annotations
        assert any(change.delete for change in after) == due


def test_the_plugins_configuration_changes_with_its_return() -> None:
    care = rules("pauseLabels", cordon=False)
    during = played(NODE, changes.preparations(NODE, care))
    [patch] = changes.restorations(during, PLUGIN_PODS, plugin_config="shared-4")
    assert patch.labels[changes.PLUGIN_CONFIG] == "shared-4"
    assert patch.labels[f"{PREFIX}device-plugin"] == "true"
    done = played(during, [patch])
    assert changes.restorations(done, PLUGIN_PODS, plugin_config="shared-4") == ()
    assert changes.restorations(done, PLUGIN_PODS) == ()
    [other] = changes.restorations(done, PLUGIN_PODS, plugin_config="another")
    assert other.labels == {changes.PLUGIN_CONFIG: "another"}


SHARING = WantedMps(Sharing((Share("s", 1, None, None),), "report"), Account(1000, 1000))


def test_what_changes_no_device_disturbs_no_client() -> None:
    off = replace(card("h100-80gb"), mig=MigMode(current=False, pending=False))
    shared = DesiredGpu(None, "gpus[0]", mps=SHARING)
    sliced = DesiredGpu(None, "gpus[0]", time_slice=TimeSlice.LONG)
    ampere = replace(card("a100-40gb"), mig=MigMode(current=False, pending=False))
    for gpu, desired in [(off, shared), (off, sliced), (ampere, wanted(ampere, [("1g.5gb", 7)]))]:
        made = plan(DesiredNode({gpu.key: desired}), ObservedNode((gpu,)))
        assert made.steps
        assert not made.changes_devices
    assert not planned(wanted(H100, [("7g.80gb", 1)])).changes_devices
    assert CHANGE.changes_devices
    assert CHANGE.verdict is Verdict.APPLICABLE


OURS = {changes.CORDONED: "true"}


def test_an_uncordon_in_between_is_kept() -> None:
    """A user wanted pods here: only the agent's mark goes, and a later change cordons anew."""
    node = NodeView(annotations=OURS)
    ended = changes.uncordoning(node)
    assert ended is not None
    assert (ended.unschedulable, ended.annotations) == (None, {changes.CORDONED: None})
    assert changes.cordoning(node, rules("nothing"))


# --- deploy labels --------------------------------------------------------------------------------

PLUGIN_LABEL = f"{PREFIX}device-plugin"


def test_whose_end_is_awaited() -> None:
    labels = {PLUGIN_LABEL: changes.PAUSED, f"{PREFIX}dcgm": "false", f"{PREFIX}client": "true"}
    assert [str(pods) for pods in changes.leaving_pods(labels)] == [
        "app=nvidia-device-plugin-daemonset",
        "app=nvidia-device-plugin-mps-control-daemon",
        f"pods that select {PREFIX}client",
    ]
