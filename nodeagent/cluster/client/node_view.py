"""The part of a Node that concerns the agent, checked and taken from the API server's JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, cast

from nodeagent.cluster.client.faults import strange_answer
from nodeagent.cluster.client.taints import Taint
from nodeagent.health.reporting import Condition


def parts_of(whole: object) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
    """Metadata, spec and status of one thing; those that are missing are empty."""
    found = object_in(whole)
    metadata, spec, status = (object_in(found.get(key)) for key in ("metadata", "spec", "status"))
    return metadata, spec, status


def object_in(value: object) -> Mapping[str, Any]:
    """An object, empty where there is none."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError
    return value


def objects_in(value: object) -> list[Mapping[str, Any]]:
    """A list of objects, empty where there is none."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise TypeError
    return [object_in(one) for one in value]


def text_in(value: object) -> str:
    """A text; it has to be there."""
    if not isinstance(value, str):
        raise TypeError
    return value


_VERSION: Final = re.compile("[0-9]{1,20}")  # of 64 bits

# What of a Node is in its view, by the beginnings of keys. The rest is left out, so that what the
# kubelet and others write changes no view.
ANNOTATIONS: Final = ("nodeagent.io/", "nos.nebuly.com/", "hami.io/node-nvidia-register")
LABELS: Final = ("nodeagent.io/", "nos.nebuly.com/", "nvidia.com/")
_ALLOCATABLE: Final = ("nvidia.com/", "mig.das.com/", "instaslice.redhat.com/")
CONDITIONS: Final = frozenset({"GPUPartitionsReady", "GPUHealthy"})


@dataclass(frozen=True, slots=True)
class NodeView:
    """What matters of a Node; two views are equal when it is the same, at whatever version.

    `changed_at` is when the status of a condition changed last, as the server wrote. Without
    arguments: a Node of which nothing is known.
    """

    name: str = ""
    uid: str = ""
    resource_version: str = field(default="", compare=False)
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    allocatable: Mapping[str, str] = field(default_factory=dict)  # quantities as the server writes
    conditions: Mapping[str, Condition] = field(default_factory=dict)  # by type
    changed_at: Mapping[str, str] = field(default_factory=dict, compare=False)  # by type


def view_of(node: object) -> NodeView:
    """The view of a Node in JSON; raises `ClusterUnreachable` for what is no Node."""
    try:
        metadata, spec, status = parts_of(node)
        entries = objects_in(status.get("conditions"))
        conditions = {e["type"]: e for e in entries if e.get("type") in CONDITIONS}
        return NodeView(
            name=text_in(metadata["name"]),
            uid=text_in(metadata["uid"]),
            resource_version=text_in(metadata["resourceVersion"]),
            annotations=_chosen(metadata.get("annotations"), ANNOTATIONS),
            labels=_chosen(metadata.get("labels"), LABELS),
            unschedulable=spec.get("unschedulable") is True,
            taints=tuple(objects_in(spec.get("taints"))),
            allocatable=_chosen(status.get("allocatable"), _ALLOCATABLE),
            conditions={kind: _condition(entry) for kind, entry in conditions.items()},
            changed_at={
                kind: text_in(entry.get("lastTransitionTime") or "")
                for kind, entry in conditions.items()
            },
        )
    except (KeyError, TypeError) as error:
        raise strange_answer("a question about the Node", "it is no Node") from error


def is_newer(version: str, than: str) -> bool:
    """Whether a resource version comes after another one of the same server.

    Kubernetes writes them as decimal numbers that grow; where one is not, everything is newer.
    """
    if _VERSION.fullmatch(version) and _VERSION.fullmatch(than):
        return int(version) > int(than)
    return True


def time_text(moment: datetime) -> str:
    """A time in UTC as Kubernetes writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _chosen(value: object, prefixes: tuple[str, ...]) -> Mapping[str, str]:
    return {k: text_in(v) for k, v in object_in(value).items() if k.startswith(prefixes)}


def _condition(entry: Mapping[str, Any]) -> Condition:
    return Condition(
        # Another word is a mistake; it differs from every wanted one, which is right.
        cast('Literal["True", "False", "Unknown"]', text_in(entry["status"])),
        text_in(entry.get("reason", "")),
        text_in(entry.get("message", "")),
    )
