"""The pods on the agent's node, as far as a change of its GPUs depends on them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from nodeagent.cluster.kubelet.allocations import PodName


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod on this node.

    `ended`: it is finished, and none of its containers is reported as running. `controller` is the
    kind of its controlling owner ("DaemonSet"), "" without one. `mirror`: the kubelet runs it from
    a file, and the API server cannot remove it. `selects` are the node labels that its nodeSelector
    and its required node affinity name. `dynamic_mig`: a variable of its containers switches on
    the feature gate DynamicMIG. `uid` distinguishes it from a later pod of the same name.
    """

    namespace: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    phase: str = "Running"
    ended: bool = False
    leaving: bool = False
    controller: str = ""
    mirror: bool = False
    selects: frozenset[str] = frozenset()
    dynamic_mig: bool = False
    uid: str = ""

    @property
    def key(self) -> PodName:
        return PodName(self.namespace, self.name)

    @property
    def finished(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    def __str__(self) -> str:
        return str(self.key)


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Pods of this node with all of these labels, in any namespace.

    With `selects`, pods of DaemonSets whose node selector or affinity names that node label.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    selects: str = ""

    def matches(self, pod: Pod) -> bool:
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
