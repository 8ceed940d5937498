"""What is known of a node and of the pods on it, as far as a disturbance concerns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_FINISHED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class PodFact:
    """A pod on this node.

    `controller` is the kind of its controlling owner ("DaemonSet"), "" without one. `mirror`: the
    kubelet runs it from a file, and the API server cannot make it go. `selects` are the node labels
    that its nodeSelector and its required node affinity name. `environment` is what its containers
    are given literally. `uid` tells it from one of the same name that came after it.
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
        """Whether nothing of it runs any more."""
        return self.phase in _FINISHED

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A Node; `pods` None: nobody could say which pods are on it."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    unschedulable: bool = False
    allocatable: Mapping[str, str] = field(default_factory=dict)  # quantities as written
    pods: tuple[PodFact, ...] | None = None

    def pod(self, namespace: str, name: str) -> PodFact | None:
        """The pod of this name, if it is known."""
        pods = self.pods or ()
        return next((p for p in pods if (p.namespace, p.name) == (namespace, name)), None)
