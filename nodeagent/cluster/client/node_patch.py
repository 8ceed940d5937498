"""What of a Node is wanted, how that differs from what is there, and the requests that mend it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from nodeagent.cluster.client import requests
from nodeagent.cluster.client.node_view import NodeView, time_text
from nodeagent.cluster.client.requests import Request
from nodeagent.cluster.client.taints import has_taint, taints_with
from nodeagent.health.reporting import Condition

T = TypeVar("T")
_Keys = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the agent wants on its Node. None removes a key, False a taint; keys that are not named,
    and conditions of other types, stay as they are.
    """

    annotations: _Keys = field(default_factory=dict)
    labels: _Keys = field(default_factory=dict)
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    taints: Mapping[str, bool] = field(default_factory=dict)


def differences(wanted: Wanted, view: NodeView) -> tuple[Wanted, ...]:
    """What is not so yet, by the requests that it takes: of metadata, of the status, of taints."""
    metadata = Wanted(
        annotations=_difference(wanted.annotations, view.annotations),
        labels=_difference(wanted.labels, view.labels),
    )
    status = Wanted(conditions=_difference(wanted.conditions, view.conditions))
    there = {key: has_taint(view.taints, key) for key in wanted.taints}
    taints = Wanted(taints=_difference(wanted.taints, there))
    return tuple(part for part in (metadata, status, taints) if part != Wanted())


def patch_of(node: str, part: Wanted, view: NodeView, moment: datetime) -> Request:
    """The request for one of these differences; `moment` is now, in UTC.

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
