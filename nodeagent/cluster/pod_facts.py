"""What the agent wants to know of a pod, read from what the API server sends. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from nodeagent.disturbance.facts import PodFact
from nodeagent.kubernetes.faults import ClusterUnreachable, strange_answer

_MIRROR: Final = "kubernetes.io/config.mirror"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")


def pod_fact(pod: object) -> PodFact:
    """The facts of a pod in JSON; raises `ClusterUnreachable` for what is no pod."""
    try:
        whole = _object(pod)
        metadata, spec, status = (_object(whole.get(key)) for key in ("metadata", "spec", "status"))
        return PodFact(
            namespace=_text(metadata["namespace"]),
            name=_text(metadata["name"]),
            uid=_text(metadata["uid"]),
            labels={key: _text(value) for key, value in _object(metadata.get("labels")).items()},
            phase=_text(status.get("phase", "")),
            leaving=metadata.get("deletionTimestamp") is not None,
            controller=next(_controllers(metadata), ""),
            mirror=_MIRROR in _object(metadata.get("annotations")),
            selects=frozenset(_selected(spec)),
            environment=dict(_environment(spec)),
        )
    except (KeyError, TypeError) as error:
        raise _no_pod() from error


def has_ended(pod: object) -> bool:
    """Whether it is over and, for all that is told, none of its containers still runs."""
    try:
        status = _object(_object(pod).get("status"))
        running = any(
            "running" in _object(container.get("state"))
            for kind in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
            for container in _objects(status.get(kind))
        )
    except TypeError as error:
        raise _no_pod() from error
    return status.get("phase") in ("Succeeded", "Failed") and not running


def _no_pod() -> ClusterUnreachable:
    return strange_answer("a question about pods", "it is no pod")


def _controllers(metadata: Mapping[str, Any]) -> Iterator[str]:
    for owner in _objects(metadata.get("ownerReferences")):
        if owner.get("controller") is True:
            yield _text(owner["kind"])


def _selected(spec: Mapping[str, Any]) -> Iterator[str]:
    """The labels that a node must have, or have in some way, for the pod to be on it."""
    yield from _object(spec.get("nodeSelector"))
    affinity = _object(_object(spec.get("affinity")).get("nodeAffinity"))
    for term in _objects(_object(affinity.get(_REQUIRED)).get("nodeSelectorTerms")):
        for expression in _objects(term.get("matchExpressions")):
            yield _text(expression["key"])


def _environment(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for kind in _CONTAINERS:
        for container in _objects(spec.get(kind)):
            for variable in _objects(container.get("env")):
                if isinstance(variable.get("value"), str):
                    yield _text(variable["name"]), variable["value"]


def _object(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError
    return value


def _objects(value: object) -> list[Mapping[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise TypeError
    return [_object(one) for one in value]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
