"""The pods on the agent's node, as far as a change of its GPUs depends on them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from nodeagent.cluster.client.faults import strange_answer
from nodeagent.cluster.client.node_view import object_in, objects_in, parts_of, text_in
from nodeagent.cluster.kubelet.allocations import PodName

_MIRROR: Final = "kubernetes.io/config.mirror"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_KINDS: Final = ("initContainer", "container", "ephemeralContainer")
_DYNAMIC_MIG: Final = re.compile(r"(?:^|,)\s*DynamicMIG=true\s*(?:,|$)", re.IGNORECASE)


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


# --- a pod in JSON --------------------------------------------------------------------------------


def pod_of(pod: object) -> Pod:
    """The pod that this JSON describes; raises `ClusterUnreachable` for what is not a pod."""
    try:
        metadata, spec, status = parts_of(pod)
        owners = objects_in(metadata.get("ownerReferences"))
        return Pod(
            namespace=text_in(metadata["namespace"]),
            name=text_in(metadata["name"]),
            uid=text_in(metadata["uid"]),
            labels={k: text_in(v) for k, v in object_in(metadata.get("labels")).items()},
            phase=text_in(status.get("phase", "")),
            ended=_has_ended(status),
            leaving=metadata.get("deletionTimestamp") is not None,
            controller=next(
                (text_in(o["kind"]) for o in owners if o.get("controller") is True), ""
            ),
            mirror=_MIRROR in object_in(metadata.get("annotations")),
            selects=frozenset(_selected(spec)),
            dynamic_mig=any(map(_DYNAMIC_MIG.search, _feature_gates(spec))),
        )
    except (KeyError, TypeError) as error:
        raise strange_answer("a question about pods", "it is not a pod") from error


def _has_ended(status: Mapping[str, Any]) -> bool:
    running = any(
        "running" in object_in(container.get("state"))
        for kind in _KINDS
        for container in objects_in(status.get(f"{kind}Statuses"))
    )
    return status.get("phase") in ("Succeeded", "Failed") and not running


def _selected(spec: Mapping[str, Any]) -> Iterator[str]:
    """The labels that a node must have, or have in some way, for the pod to be on it."""
    yield from object_in(spec.get("nodeSelector"))
    affinity = object_in(object_in(spec.get("affinity")).get("nodeAffinity"))
    for term in objects_in(object_in(affinity.get(_REQUIRED)).get("nodeSelectorTerms")):
        for expression in objects_in(term.get("matchExpressions")):
            yield text_in(expression["key"])


def _feature_gates(spec: Mapping[str, Any]) -> Iterator[str]:
    for kind in _KINDS:
        for container in objects_in(spec.get(f"{kind}s")):
            for variable in objects_in(container.get("env")):
                value = variable.get("value")
                if variable.get("name") == "FEATURE_GATES" and isinstance(value, str):
                    yield value
