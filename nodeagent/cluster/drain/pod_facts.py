"""What the agent wants to know of a pod, read from what the API server sends. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from nodeagent.cluster.client.faults import ClusterUnreachable, strange_answer
from nodeagent.cluster.client.json_values import object_in, objects_in, parts_of, text_in
from nodeagent.cluster.drain.node_facts import PodFact

_MIRROR: Final = "kubernetes.io/config.mirror"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")


def pod_fact(pod: object) -> PodFact:
    """The facts of a pod in JSON; raises `ClusterUnreachable` for what is no pod."""
    try:
        metadata, spec, status = parts_of(pod)
        return PodFact(
            namespace=text_in(metadata["namespace"]),
            name=text_in(metadata["name"]),
            uid=text_in(metadata["uid"]),
            labels={k: text_in(v) for k, v in object_in(metadata.get("labels")).items()},
            phase=text_in(status.get("phase", "")),
            leaving=metadata.get("deletionTimestamp") is not None,
            controller=next(_controllers(metadata), ""),
            mirror=_MIRROR in object_in(metadata.get("annotations")),
            selects=frozenset(_selected(spec)),
            environment=dict(_environment(spec)),
        )
    except (KeyError, TypeError) as error:
        raise _no_pod() from error


def has_ended(pod: object) -> bool:
    """Whether it is over and, for all that is told, none of its containers still runs."""
    try:
        status = object_in(object_in(pod).get("status"))
        running = any(
            "running" in object_in(container.get("state"))
            for kind in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
            for container in objects_in(status.get(kind))
        )
    except TypeError as error:
        raise _no_pod() from error
    return status.get("phase") in ("Succeeded", "Failed") and not running


def _no_pod() -> ClusterUnreachable:
    return strange_answer("a question about pods", "it is no pod")


def _controllers(metadata: Mapping[str, Any]) -> Iterator[str]:
    for owner in objects_in(metadata.get("ownerReferences")):
        if owner.get("controller") is True:
            yield text_in(owner["kind"])


def _selected(spec: Mapping[str, Any]) -> Iterator[str]:
    """The labels that a node must have, or have in some way, for the pod to be on it."""
    yield from object_in(spec.get("nodeSelector"))
    affinity = object_in(object_in(spec.get("affinity")).get("nodeAffinity"))
    for term in objects_in(object_in(affinity.get(_REQUIRED)).get("nodeSelectorTerms")):
        for expression in objects_in(term.get("matchExpressions")):
            yield text_in(expression["key"])


def _environment(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for kind in _CONTAINERS:
        for container in objects_in(spec.get(kind)):
            for variable in objects_in(container.get("env")):
                if isinstance(variable.get("value"), str):
                    yield text_in(variable["name"]), variable["value"]
