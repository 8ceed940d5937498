"""Changes of the Node around a change of the GPUs: before it, after it, and after a crash. Pure.

Each function is called with the Node as it is then and returns what is left to do. So repeating a
change is harmless, and what a crash left is put back by the next agent: what was changed is
recorded on the Node alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, assert_never

from nodeagent.cluster.client.node_view import CHANGING, NodeView, has_taint
from nodeagent.cluster.drain.pods import PodSelector
from nodeagent.structs import Struct, field

if TYPE_CHECKING:  # settings are not pure
    from nodeagent.settings import KubernetesSettings

CORDONED: Final = "nodeagent.io/cordoned"
RESTART_DUE: Final = "nodeagent.io/device-plugin-restart-due"
PLUGIN_CONFIG: Final = "nvidia.com/device-plugin.config"


class NodeChange(Struct, frozen=True):
    """One merge patch of the Node; None removes a key. `unschedulable`, and `changing` (the taint
    of that name), are left as they are where they are None.

    What belongs together is in one patch, so that no crash can come between. The pods in `delete`
    are deleted before it; their controller makes new ones.
    """

    reason: str
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    unschedulable: bool | None = None
    changing: bool | None = None
    delete: tuple[PodSelector, ...] = ()

    def words(self) -> Iterator[str]:
        """Name the parts of the patch: `unschedulable`, `label x=y`, `annotation z removed`."""
        if self.unschedulable is not None:
            yield "unschedulable" if self.unschedulable else "schedulable"
        if self.changing is not None:
            yield f"taint {CHANGING} {'set' if self.changing else 'removed'}"
        for kind, values in (("label", self.labels), ("annotation", self.annotations)):
            for key, value in values.items():
                yield f"{kind} {key} removed" if value is None else f"{kind} {key}={value}"


def preparations(node: NodeView, settings: KubernetesSettings) -> tuple[NodeChange, ...]:
    """Before devices change: the cordon, then what notifies the other GPU clients.

    The labels move the GPU Operator's operands off the node and back, as mig-manager does. Deleting
    the device plugin's pod afterwards makes it enumerate again where there is no operator.
    """
    match settings.clients:
        case "pauseLabels":
            labels = pausing(node.labels)
            notify = NodeChange("what holds the GPUs is to go", labels) if labels else None
        case "deletePods" if RESTART_DUE not in node.annotations:
            reason = "the device plugin has to look again afterwards, also after a crash"
            notify = NodeChange(reason, annotations={RESTART_DUE: "true"})
        case "deletePods" | "nothing":
            notify = None
        case _:
            assert_never(settings.clients)
    return (*cordoning(node, settings), *([notify] if notify else []))


def restorations(
    node: NodeView,
    plugin_pods: tuple[PodSelector, ...],
    *,
    plugin_config: str | None = None,
    stay_paused: bool = False,
) -> tuple[NodeChange, ...]:
    """After the change, however it ended, and at the agent's start; `uncordoning` comes later.

    It goes by the Node and not by the settings, so that it also puts back what another setting had
    changed before. `plugin_pods` are the device plugin's, to be deleted where that is due.
    `plugin_config` is the plan's devicePluginConfig; None leaves the label alone.
    `stay_paused`: another manager may be at work, and have paused the clients itself.
    """
    changes: list[NodeChange] = []
    labels = {} if stay_paused else restoring(node.labels)
    reason = "the GPUs are changed" if labels else "the plan asks for this configuration"
    if plugin_config is not None and node.labels.get(PLUGIN_CONFIG) != plugin_config:
        labels[PLUGIN_CONFIG] = plugin_config
    if labels:
        changes.append(NodeChange(reason, labels))
    if RESTART_DUE in node.annotations:
        # Until the annotation is gone a crash leaves it, and the pods are deleted once more.
        reason = "the device plugin looks again"
        done: dict[str, str | None] = {RESTART_DUE: None}
        changes.append(NodeChange(reason, annotations=done, delete=plugin_pods))
    return tuple(changes)


# --- the cordon -----------------------------------------------------------------------------------
# An annotation, set and removed together with the cordon, marks it as the agent's. A cordon without
# it is left alone. A person who cordons a node that the agent has cordoned already cannot be
# distinguished from the agent; uncordoning ends both. The taint `gpu-changing`, whose key is the
# agent's, comes and goes with the cordon.


def cordoning(node: NodeView, settings: KubernetesSettings) -> tuple[NodeChange, ...]:
    """The cordon and taint that are wanted and missing; a cordon of any origin counts."""
    cordon = settings.cordon and not node.unschedulable
    taint = settings.taints and not has_taint(node.taints, CHANGING)
    if not (cordon or taint):
        return ()
    return (
        NodeChange(
            "nothing new is to come here while the GPUs change",
            annotations={CORDONED: "true"} if cordon else {},
            unschedulable=True if cordon else None,
            changing=True if taint else None,
        ),
    )


def uncordoning(node: NodeView) -> NodeChange | None:
    """What ends the agent's cordon and taint; None if it set neither. If another uncordoned the
    Node meanwhile, only the annotation goes.
    """
    cordoned, tainted = CORDONED in node.annotations, has_taint(node.taints, CHANGING)
    if not (cordoned or tainted):
        return None
    was_ended = cordoned and not node.unschedulable
    return NodeChange(
        "it was uncordoned meanwhile" if was_ended else "the GPUs are changed",
        annotations={CORDONED: None} if cordoned else {},
        unschedulable=False if cordoned and not was_ended else None,
        changing=False if tainted else None,
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
