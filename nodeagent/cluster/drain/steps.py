"""The closed list of what is done around a change of the GPUs, each with the reason why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from nodeagent.cluster.drain.node_facts import PodFact


class ClientCare(StrEnum):
    """How the GPU's clients in the cluster are told of a change.

    The labels move the GPU Operator's operands off the node and back, as mig-manager does. Deleting
    the device plugin's pod afterwards makes it look again where there is no operator.
    """

    PAUSE_LABELS = "pauseLabels"
    DELETE_PODS = "deletePods"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Pods of this node with all of these labels, in any namespace unless one is given.

    With `selects`, pods of DaemonSets whose node selector or affinity names that node label.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    selects: str = ""

    def matches(self, pod: PodFact) -> bool:
        if self.namespace and pod.namespace != self.namespace:
            return False
        if self.selects:
            return pod.controller == "DaemonSet" and self.selects in pod.selects
        return bool(self.labels) and self.labels.items() <= pod.labels.items()

    @classmethod
    def of(cls, text: str) -> Self:
        """From `key=value,key=value`; raises ValueError for anything else."""
        pairs = [pair.partition("=") for pair in text.split(",")]
        if not all(key.strip() and mark for key, mark, _ in pairs):
            raise ValueError(f"{text!r} are no labels: key=value is due, with commas between")
        return cls({key.strip(): value.strip() for key, _, value in pairs})

    def __str__(self) -> str:
        if self.selects:
            return f"pods that select {self.selects}"
        return ",".join(f"{key}={value}" for key, value in self.labels.items())


@dataclass(frozen=True, slots=True)
class PatchNode:
    """One merge patch of the Node; None takes a key away. `unschedulable` None leaves it as it is.

    What belongs together is in one patch, so that no crash can come between.
    """

    reason: str
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    unschedulable: bool | None = None


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Ask for the pod's eviction, which its disruption budgets may refuse for now."""

    namespace: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeletePods:
    """Delete this node's pods that match; their controller makes new ones."""

    selector: PodSelector
    reason: str


@dataclass(frozen=True, slots=True)
class AwaitPodsGone:
    """Wait, with a limit, until no unfinished pod of this node matches."""

    selector: PodSelector
    reason: str


@dataclass(frozen=True, slots=True)
class AwaitAllocatable:
    """Wait, with a limit, until the node offers this; `mismatches` words what differs then."""

    expected: Mapping[str, int]
    reason: str


Step = PatchNode | EvictPod | DeletePods | AwaitPodsGone | AwaitAllocatable
