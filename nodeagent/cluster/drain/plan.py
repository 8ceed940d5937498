"""Plans the steps around a change of the GPUs: before it, after it, and after a crash. Pure.

Each function is called with the node as it is then and returns what is left to do. So repeating a
step is harmless, and what a crash left is put back by the next `conclude`: the GPU Operator's
deploy labels (values as mig-manager writes them) and the cordon with its annotation record on the
Node itself what was changed.
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

TRUE: Final = "true"
PAUSED: Final = "paused-for-mig-change"

_PREFIX = "nvidia.com/gpu.deploy."


def _app(name: str) -> PodSelector:
    return PodSelector({"app": name})


@dataclass(frozen=True, slots=True)
class Client:
    """A deploy label and the pods that go when it is not `true`."""

    label: str
    pods: tuple[PodSelector, ...]


CLIENTS: Final = (
    Client(
        f"{_PREFIX}device-plugin",
        (
            _app("nvidia-device-plugin-daemonset"),
            # Its daemon holds the GPUs as long as it is there, and hangs on the same label.
            _app("nvidia-device-plugin-mps-control-daemon"),
        ),
    ),
    Client(f"{_PREFIX}gpu-feature-discovery", (_app("gpu-feature-discovery"),)),
    Client(f"{_PREFIX}dcgm-exporter", (_app("nvidia-dcgm-exporter"),)),
    Client(f"{_PREFIX}dcgm", (_app("nvidia-dcgm"),)),
    Client(f"{_PREFIX}nvsm", ()),  # its pods have no label of their own that could be awaited
    Client(f"{_PREFIX}client", (PodSelector(selects=f"{_PREFIX}client"),)),  # anybody's
)


def pausing(labels: Mapping[str, str]) -> dict[str, str | None]:
    """The labels to change before; empty when none is `true`."""
    return {c.label: PAUSED for c in CLIENTS if labels.get(c.label) == TRUE}


def restoring(labels: Mapping[str, str]) -> dict[str, str | None]:
    """The labels to change afterwards, seen as they are then; empty when none is paused."""
    return {c.label: TRUE for c in CLIENTS if labels.get(c.label) == PAUSED}


def leaving_pods(labels: Mapping[str, str]) -> tuple[PodSelector, ...]:
    """The pods that go when what is `true` is paused, or that go since it is paused already."""
    return tuple(pods for c in CLIENTS if labels.get(c.label) in (TRUE, PAUSED) for pods in c.pods)


CORDONED: Final = "nodeagent.io/cordoned"


def cordoning(node: NodeFacts) -> PatchNode | None:
    """None when the node is cordoned already, by whomever."""
    if node.unschedulable:
        return None
    return PatchNode(
        "nothing new is to come here while the GPUs change",
        annotations={CORDONED: "true"},
        unschedulable=True,
    )


def uncordoning(node: NodeFacts) -> PatchNode | None:
    """None when the agent did not cordon it. Somebody's uncordon in between is kept, and only the
    annotation goes then.
    """
    if CORDONED not in node.annotations:
        return None
    return PatchNode(
        "the GPUs are changed" if node.unschedulable else "somebody has uncordoned it already",
        annotations={CORDONED: None},
        unschedulable=False if node.unschedulable else None,
    )


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
    """Before the plan is carried out; nothing when it changes no device that pods could get."""
    if not plan.changes_devices:
        return ()
    return (*_cordon(node, rules), *_tell_clients(node, rules))


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

    It goes by what the node says and not by the settings, so that it also puts back what another
    setting had changed before. `expected` None: what the node should offer is not known, or
    nothing was changed that it would have to be awaited for. `plugin_config` is the plan's
    devicePluginConfig; None leaves the label alone. `stays_cordoned`: evictions still need it.
    `stay_paused`: somebody else may be at work, for whom the clients were sent away.
    """
    steps: list[Step] = []
    labels = {} if stay_paused else restoring(node.labels)
    told = bool(labels)
    if plugin_config is not None and node.labels.get(PLUGIN_CONFIG) != plugin_config:
        labels[PLUGIN_CONFIG] = plugin_config
    if labels:
        reason = "the GPUs are changed" if told else "the plan asks for this configuration"
        steps.append(PatchNode(reason, labels=labels))
    if RESTART_DUE in node.annotations:
        steps += [
            DeletePods(p, "it looks at the GPUs only at its start") for p in rules.plugin_pods
        ]
        # Taken away last: until then a crash leaves it, and the pods are deleted once more.
        steps.append(PatchNode("the device plugin looks again", annotations={RESTART_DUE: None}))
    if expected is not None:
        steps.append(AwaitAllocatable(expected, "pods can have the new devices only then"))
    uncordon = None if stays_cordoned else uncordoning(node)
    return (*steps, uncordon) if uncordon else tuple(steps)


def _cordon(node: NodeFacts, rules: Rules) -> tuple[Step, ...]:
    cordon = cordoning(node) if rules.cordon else None
    return (cordon,) if cordon else ()


def _tell_clients(node: NodeFacts, rules: Rules) -> tuple[Step, ...]:
    match rules.care:
        case ClientCare.PAUSE_LABELS:
            labels = pausing(node.labels)
            pause = (PatchNode("what holds the GPUs is to go", labels=labels),) if labels else ()
            waits = (
                AwaitPodsGone(pods, "it holds the GPUs, or would offer what is gone")
                for pods in leaving_pods(node.labels)
            )
            return (*pause, *waits)
        case ClientCare.DELETE_PODS:
            if RESTART_DUE in node.annotations:
                return ()
            return (
                PatchNode(
                    "the device plugin has to look again afterwards, also after a crash",
                    annotations={RESTART_DUE: "true"},
                ),
            )
        case ClientCare.NOTHING:
            return ()
        case _:
            assert_never(rules.care)
