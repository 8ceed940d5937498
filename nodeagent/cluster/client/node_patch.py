"""What to send so that a Node becomes as it is wanted: the difference and nothing else. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nodeagent.cluster.client.node_view import NodeCondition, NodeView

_Keys = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the agent wants of its Node. A value of None wants the key away; keys that are not
    named, and conditions of other types, are nobody's business here.
    """

    annotations: _Keys = field(default_factory=dict)
    labels: _Keys = field(default_factory=dict)
    conditions: Mapping[str, NodeCondition] = field(default_factory=dict)  # `since` is ignored


@dataclass(frozen=True, slots=True)
class TooLarge:
    """An annotation that must not be sent; sizes are bytes, key and value together."""

    key: str
    size: int
    largest: int


@dataclass(frozen=True, slots=True)
class MetadataPatch:
    """Keys to set, and to take away where the value is None."""

    annotations: _Keys
    labels: _Keys

    @property
    def keys(self) -> tuple[str, ...]:
        """What it changes, by name."""
        return (*self.annotations, *self.labels)

    def body(self) -> dict[str, Any]:
        """A JSON merge patch."""
        parts = {"annotations": self.annotations, "labels": self.labels}
        return {"metadata": {name: dict(keys) for name, keys in parts.items() if keys}}


@dataclass(frozen=True, slots=True)
class StatusPatch:
    """Conditions to write, by type."""

    conditions: Mapping[str, NodeCondition]
    present: Mapping[str, NodeCondition] = field(compare=False)

    @property
    def keys(self) -> tuple[str, ...]:
        """The types of the conditions."""
        return tuple(self.conditions)

    def body(self, now: str) -> dict[str, Any]:
        """A strategic merge patch; `now` is a time as Kubernetes writes it."""
        return {"status": {"conditions": [self._entry(kind, now) for kind in self.conditions]}}

    def _entry(self, kind: str, now: str) -> dict[str, str]:
        wanted, there = self.conditions[kind], self.present.get(kind)
        stays = there is not None and there.status == wanted.status and there.since != ""
        return {
            "type": kind,
            "status": wanted.status,
            "reason": wanted.reason,
            "message": wanted.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": there.since if stays and there is not None else now,
        }


NodePatch = MetadataPatch | StatusPatch


def metadata_patch(wanted: Wanted, view: NodeView) -> MetadataPatch | None:
    """The keys that differ from what is there; None if none does."""
    patch = MetadataPatch(
        annotations=_difference(wanted.annotations, view.annotations),
        labels=_difference(wanted.labels, view.labels),
    )
    return patch if patch.annotations or patch.labels else None


def status_patch(wanted: Wanted, view: NodeView) -> StatusPatch | None:
    """The conditions that differ from what is there; None if none does."""
    differ = {
        kind: condition
        for kind, condition in wanted.conditions.items()
        if view.conditions.get(kind) != condition
    }
    return StatusPatch(differ, view.conditions) if differ else None


def oversized(wanted: Wanted, largest: int) -> TooLarge | None:
    """The first annotation with more than so many bytes."""
    for key, value in wanted.annotations.items():
        size = len(key.encode()) + len((value or "").encode())
        if size > largest:
            return TooLarge(key, size, largest)
    return None


def _difference(wanted: _Keys, there: Mapping[str, str]) -> _Keys:
    return {key: value for key, value in wanted.items() if there.get(key) != value}
