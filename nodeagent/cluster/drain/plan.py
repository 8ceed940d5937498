"""Plans the steps around a change of the GPUs: before it, after it, and after a crash. Pure.

Each function is called with the node as it is then and returns what is left to do. So repeating a
step is harmless, and what a crash left is put back by the next `conclude`: what was changed is
recorded on the Node alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from nodeagent.cluster.drain.eviction import Evictions
from nodeagent.cluster.drain.steps import (
    AwaitAllocatable,
    AwaitPodsGone,
    ClientCare,
    DeletePods,
    NodeFacts,
    PatchNode,
    PodSelector,
    Step,
)
from nodeagent.plan.plan import NodePlan

CORDONED: Final = "nodeagent.io/cordoned"
RESTART_DUE: Final = "nodeagent.io/device-plugin-restart-due"
PLUGIN_CONFIG: Final = "nvidia.com/device-plugin.config"


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that bear on it. `plugin_pods` are deleted with ClientCare.DELETE_PODS."""

    care: ClientCare
    cordon: bool
    plugin_pods: tuple[PodSelector, ...] = ()


def make_room(pods: Evictions, node: NodeFacts, rules: Rules) -> tuple[Step, ...]:
    """Evictions, behind a cordon if one is wanted, so that what is evicted does not come back."""
    if not pods.wanted:
        return ()
    return (*_cordon(node, rules), *pods.wanted)


def prepare(plan: NodePlan, node: NodeFacts, rules: Rules) -> tuple[Step, ...]:
    """Before the plan is executed; nothing when it changes no device that pods could get."""
    if not plan.changes_devices:
        return ()
    return (*_cordon(node, rules), *_notify_clients(node, rules))


def conclude(
    node: NodeFacts,
    rules: Rules,
    *,
    expected: Mapping[str, int] | None = None,
    plugin_config: str | None = None,
    stays_cordoned: bool = False,
    stay_paused: bool = False,
) -> tuple[Step, ...]:
    """After the plan, however it ended, and at the agent's start: put back whatever was changed.

    It goes by the Node and not by the settings, so that it also puts back what another setting had
    changed before. `expected` is what the node should offer; None: not known, or nothing to await.
    `plugin_config` is the plan's devicePluginConfig; None leaves the label alone.
    `stays_cordoned`: evictions still need it. `stay_paused`: another manager may be at work, and
    have paused the clients itself.
    """
    steps: list[Step] = []
    labels = {} if stay_paused else restoring(node.labels)
    is_restored = bool(labels)
    if plugin_config is not None and node.labels.get(PLUGIN_CONFIG) != plugin_config:
        labels[PLUGIN_CONFIG] = plugin_config
    if labels:
        reason = "the GPUs are changed" if is_restored else "the plan asks for this configuration"
        steps.append(PatchNode(reason, labels=labels))
    if RESTART_DUE in node.annotations:
        steps += [DeletePods(pods) for pods in rules.plugin_pods]
        # Removed last: until then a crash leaves it, and the pods are deleted once more.
        steps.append(PatchNode("the device plugin looks again", annotations={RESTART_DUE: None}))
    if expected is not None:
        steps.append(AwaitAllocatable(expected))
    uncordon = None if stays_cordoned else uncordoning(node)
    return (*steps, uncordon) if uncordon else tuple(steps)


def _notify_clients(node: NodeFacts, rules: Rules) -> tuple[Step, ...]:
    match rules.care:
        case ClientCare.PAUSE_LABELS:
            labels = pausing(node.labels)
            pause = (PatchNode("what holds the GPUs is to go", labels=labels),) if labels else ()
            return (*pause, *map(AwaitPodsGone, leaving_pods(node.labels)))
        case ClientCare.DELETE_PODS:
            if RESTART_DUE in node.annotations:
                return ()
            reason = "the device plugin has to look again afterwards, also after a crash"
            return (PatchNode(reason, annotations={RESTART_DUE: "true"}),)
        case ClientCare.NOTHING:
            return ()
        case _:
            assert_never(rules.care)


# --- the cordon -----------------------------------------------------------------------------------
# An annotation, set and removed together with the cordon, marks it as the agent's. A cordon without
# it is left alone. A person who cordons a node that the agent has cordoned already cannot be told
# apart from the agent; uncordoning ends both.


def _cordon(node: NodeFacts, rules: Rules) -> tuple[Step, ...]:
    cordon = cordoning(node) if rules.cordon else None
    return (cordon,) if cordon else ()


def cordoning(node: NodeFacts) -> PatchNode | None:
    """None when the node is cordoned already, by whatever."""
    if node.unschedulable:
        return None
    return PatchNode(
        "nothing new is to come here while the GPUs change",
        annotations={CORDONED: "true"},
        unschedulable=True,
    )


def uncordoning(node: NodeFacts) -> PatchNode | None:
    """None when the agent did not cordon it. An uncordon in between by another is kept, and only
    the annotation goes then.
    """
    if CORDONED not in node.annotations:
        return None
    return PatchNode(
        "the GPUs are changed" if node.unschedulable else "it was uncordoned meanwhile",
        annotations={CORDONED: None},
        unschedulable=False if node.unschedulable else None,
    )


# --- the GPU Operator's deploy labels -------------------------------------------------------------
# The values are mig-manager's. Which were paused is recorded in the labels alone, and only what is
# `true` is paused. mig-manager also pauses what is absent, and so deploys afterwards what was never
# requested; what is `false`, or paused by a driver upgrade, belongs to others.

TRUE: Final = "true"
PAUSED: Final = "paused-for-mig-change"
_PREFIX = "nvidia.com/gpu.deploy."


def _apps(*names: str) -> tuple[PodSelector, ...]:
    return tuple(PodSelector({"app": name}) for name in names)


CLIENTS: Final[Mapping[str, tuple[PodSelector, ...]]] = {
    # The MPS daemon's pod holds the GPUs as long as it is there, and hangs on the same label.
    f"{_PREFIX}device-plugin": _apps(
        "nvidia-device-plugin-daemonset", "nvidia-device-plugin-mps-control-daemon"
    ),
    f"{_PREFIX}gpu-feature-discovery": _apps("gpu-feature-discovery"),
    f"{_PREFIX}dcgm-exporter": _apps("nvidia-dcgm-exporter"),
    f"{_PREFIX}dcgm": _apps("nvidia-dcgm"),
    f"{_PREFIX}nvsm": (),  # its pods have no label of their own that could be awaited
    f"{_PREFIX}client": (PodSelector(selects=f"{_PREFIX}client"),),  # those of third parties
}
"""The deploy labels, and the pods that go when one is not `true`."""


def pausing(labels: Mapping[str, str]) -> dict[str, str | None]:
    """The labels to change before; empty when none is `true`."""
    return {label: PAUSED for label in CLIENTS if labels.get(label) == TRUE}


def restoring(labels: Mapping[str, str]) -> dict[str, str | None]:
    """The labels to change afterwards; empty when none is paused."""
    return {label: TRUE for label in CLIENTS if labels.get(label) == PAUSED}


def leaving_pods(labels: Mapping[str, str]) -> tuple[PodSelector, ...]:
    """The pods that go when what is `true` is paused, or that go since it is paused already."""
    return tuple(
        selector
        for label, pods in CLIENTS.items()
        if labels.get(label) in (TRUE, PAUSED)
        for selector in pods
    )
