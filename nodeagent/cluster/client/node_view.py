"""The part of a Node that concerns the agent: taken from the API server's JSON and checked, what is
wanted of it, and the requests that mend the difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, TypeVar, cast

from nodeagent.cluster.client import requests
from nodeagent.cluster.client.faults import strange_answer
from nodeagent.cluster.client.requests import Request
from nodeagent.health.reporting import Condition

T = TypeVar("T")
_Keys = Mapping[str, str | None]

UNHEALTHY: Final = "nodeagent.io/gpu-unhealthy"
CHANGING: Final = "nodeagent.io/gpu-changing"
Taint = Mapping[str, Any]  # as the API server writes it; of the agent's own these are the keys


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


# --- what is wanted of it -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the agent wants on its Node. None removes a key, False a taint; keys that are not named,
    and conditions of other types, stay as they are.
    """

    annotations: _Keys = field(default_factory=dict)
    labels: _Keys = field(default_factory=dict)
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    taints: Mapping[str, bool] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """All that is named, for people."""
        return (*self.annotations, *self.labels, *self.conditions, *self.taints)


def difference(wanted: Wanted, view: NodeView) -> Wanted | None:
    """What is not so yet; None when all is."""
    tainted = {key: has_taint(view.taints, key) for key in wanted.taints}
    part = Wanted(
        _difference(wanted.annotations, view.annotations),
        _difference(wanted.labels, view.labels),
        _difference(wanted.conditions, view.conditions),
        _difference(wanted.taints, tainted),
    )
    return part if part.keys else None


def patch_of(node: str, part: Wanted, view: NodeView, moment: datetime) -> Request:
    """The request for a difference of metadata, status or taints; `moment` is now, in UTC.

    A condition whose status stays keeps the time since when it is so.
    """
    if part.taints:
        version = {"resourceVersion": view.resource_version}
        taints = taints_with(view.taints, part.taints) or None
        return requests.patch_node(node, {"metadata": version, "spec": {"taints": taints}})
    if not part.conditions:
        keys = {"annotations": part.annotations, "labels": part.labels}
        metadata = {name: dict(texts) for name, texts in keys.items() if texts}
        return requests.patch_node(node, {"metadata": metadata})
    now, entries = time_text(moment), []
    for kind, condition in part.conditions.items():
        there = view.conditions.get(kind)
        stays = there is not None and there.status == condition.status
        entries.append(
            {
                "type": kind,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": (stays and view.changed_at.get(kind)) or now,
            }
        )
    return requests.patch_node_status(node, {"status": {"conditions": entries}})


def too_large(annotations: _Keys, largest: int) -> dict[str, int]:
    """The bytes (key and value together) of each annotation that has more than `largest`."""
    sizes = {k: len(k.encode()) + len((v or "").encode()) for k, v in annotations.items()}
    return {key: size for key, size in sizes.items() if size > largest}


def _difference(wanted: Mapping[str, T], there: Mapping[str, object]) -> Mapping[str, T]:
    return {key: value for key, value in wanted.items() if there.get(key) != value}


def has_taint(taints: Iterable[Taint], key: str) -> bool:
    """With any effect."""
    return any(taint.get("key") == key for taint in taints)


def taints_with(taints: Iterable[Taint], wanted: Mapping[str, bool]) -> list[Taint]:
    """These taints with those that are wanted and without those that are not.

    A patch replaces the Node's list, so it has to name the version that it was made for.
    """
    others = [taint for taint in taints if taint.get("key") not in wanted]
    return others + [{"key": k, "effect": "NoSchedule"} for k, is_on in wanted.items() if is_on]
