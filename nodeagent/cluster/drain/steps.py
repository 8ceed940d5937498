"""The facts about a node that a drain depends on, and the closed list of its steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from nodeagent.plan.problems import Code, Problem

_FINISHED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class PodFact:
    """A pod on this node.

    `controller` is the kind of its controlling owner ("DaemonSet"), "" without one. `mirror`: the
    kubelet runs it from a file, and the API server cannot remove it. `selects` are the node labels
    that its nodeSelector and its required node affinity name. `environment` is what its containers
    are given literally. `uid` distinguishes it from a later pod of the same name.
    """

    namespace: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    phase: str = "Running"
    leaving: bool = False
    controller: str = ""
    mirror: bool = False
    selects: frozenset[str] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)
    uid: str = ""

    @property
    def finished(self) -> bool:
        return self.phase in _FINISHED

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A Node; `pods` None: it is not known which pods are on it."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    unschedulable: bool = False
    allocatable: Mapping[str, str] = field(default_factory=dict)  # quantities as written
    pods: tuple[PodFact, ...] | None = None

    def pod(self, namespace: str, name: str) -> PodFact | None:
        """The pod of this name, if it is known."""
        pods = self.pods or ()
        return next((p for p in pods if (p.namespace, p.name) == (namespace, name)), None)


class ClientCare(StrEnum):
    """How the cluster's other GPU clients are notified of a change.

    The labels move the GPU Operator's operands off the node and back, as mig-manager does. Deleting
    the device plugin's pod afterwards makes it enumerate again where there is no operator.
    """

    PAUSE_LABELS = "pauseLabels"
    DELETE_PODS = "deletePods"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Pods of this node with all of these labels, in any namespace.

    With `selects`, pods of DaemonSets whose node selector or affinity names that node label.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    selects: str = ""

    def matches(self, pod: PodFact) -> bool:
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
    """One merge patch of the Node; None removes a key. `unschedulable` None leaves it as it is.

    What belongs together is in one patch, so that no crash can come between.
    """

    reason: str
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    unschedulable: bool | None = None


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Request the pod's eviction, which its disruption budgets may refuse for now."""

    namespace: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class DeletePods:
    """Delete this node's pods that match; their controller makes new ones."""

    selector: PodSelector


@dataclass(frozen=True, slots=True)
class AwaitPodsGone:
    """Wait, with a limit, until no unfinished pod of this node matches."""

    selector: PodSelector


@dataclass(frozen=True, slots=True)
class AwaitAllocatable:
    """Wait, with a limit, until the node offers this."""

    expected: Mapping[str, int]


Step = PatchNode | EvictPod | DeletePods | AwaitPodsGone | AwaitAllocatable


def pods_left(selector: PodSelector, node: NodeFacts) -> tuple[PodFact, ...] | None:
    """The unfinished pods that still match; None when it is not known which pods are here."""
    if node.pods is None:
        return None
    return tuple(pod for pod in node.pods if not pod.finished and selector.matches(pod))


def still_there(selector: PodSelector, left: tuple[PodFact, ...] | None, seconds: float) -> Problem:
    """The wait is over and they are not gone; nothing was changed, and the labels are put back."""
    if left is None:
        who = f"whether the pods {selector} have gone is not known"
    else:
        who = f"the pods {', '.join(map(str, left))} ({selector}) have not gone"
    return Problem(
        Code.IN_USE,
        f"{who} within {seconds:g} s, so the GPUs were not changed",
        "see why with kubectl describe pod; it is tried again",
    )
