"""The part of a Node that concerns the agent, what is wanted of it, and the requests that mend the
difference.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, TypeVar, cast

from msgspec.json import Decoder

from nodeagent.cluster.client import requests
from nodeagent.cluster.client.requests import Request
from nodeagent.health.reporting import Condition
from nodeagent.structs import Struct, read_in_threads

T = TypeVar("T")
_Keys = Mapping[str, str | None]

UNHEALTHY: Final = "nodeagent.io/gpu-unhealthy"
CHANGING: Final = "nodeagent.io/gpu-changing"
Taint = dict[str, Any]  # as the API server writes it; of the agent's own these are the keys


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


class _Metadata(Struct, rename="camel"):
    name: str
    uid: str
    resource_version: str
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class _Spec(Struct, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class _Condition(Struct, rename="camel"):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class _Status(Struct, frozen=True):
    allocatable: dict[str, str] | None = None
    conditions: list[_Condition] | None = None


@read_in_threads
class _Node(Struct):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


_NODE: Final = Decoder(_Node)


def read_node(text: bytes) -> NodeView:
    """The view of a Node in the API server's JSON; raises ValueError for what is no Node."""
    node = _NODE.decode(text)
    conditions = [one for one in node.status.conditions or () if one.type in CONDITIONS]
    return NodeView(
        name=node.metadata.name,
        uid=node.metadata.uid,
        resource_version=node.metadata.resource_version,
        annotations=_chosen(node.metadata.annotations, ANNOTATIONS),
        labels=_chosen(node.metadata.labels, LABELS),
        unschedulable=node.spec.unschedulable,
        taints=node.spec.taints or (),
        allocatable=_chosen(node.status.allocatable, _ALLOCATABLE),
        # Another word for the status is a mistake, and differs from every wanted one.
        conditions={
            one.type: Condition(
                cast('Literal["True", "False", "Unknown"]', one.status), one.reason, one.message
            )
            for one in conditions
        },
        changed_at={one.type: one.last_transition_time or "" for one in conditions},
    )


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


def _chosen(texts: dict[str, str] | None, prefixes: tuple[str, ...]) -> Mapping[str, str]:
    return {k: text for k, text in (texts or {}).items() if k.startswith(prefixes)}


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


def _difference(wanted: Mapping[str, T], there: Mapping[str, object]) -> Mapping[str, T]:
    return {key: value for key, value in wanted.items() if there.get(key) != value}


def has_taint(taints: Iterable[Taint], key: str) -> bool:
    """Whether there is a taint with this key, with any effect."""
    return any(taint.get("key") == key for taint in taints)


def taints_with(taints: Iterable[Taint], wanted: Mapping[str, bool]) -> list[Taint]:
    """These taints with those that are wanted and without those that are not.

    A patch replaces the Node's list, so it has to name the version that it was made for.
    """
    others = [taint for taint in taints if taint.get("key") not in wanted]
    return others + [{"key": k, "effect": "NoSchedule"} for k, is_on in wanted.items() if is_on]
