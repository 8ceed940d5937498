"""The objects of the cluster and what happened to them: one counter of versions for all.

Every write that changes something bumps the counter, is kept in a bounded history and is
reported to the watches; a write that changes nothing does none of it. Who writes (a request, or a
test as another client) makes no difference.
"""

import asyncio
import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tests.simulated_cluster import refusals
from tests.simulated_cluster.validation import check_metadata

KINDS = {
    "nodes": "Node",
    "pods": "Pod",
    "events": "Event",
    "resourceclaims": "ResourceClaim",
    "resourceslices": "ResourceSlice",
}
GROUPS = {"resourceclaims": "resource.k8s.io/v1", "resourceslices": "resource.k8s.io/v1"}
IMMUTABLE = ("uid", "creationTimestamp", "namespace")

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Key:
    """Which object: its resource, its namespace ("" for a Node) and its name."""

    plural: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Change:
    """An object before (None: created) and after (None: deleted), and the counter then."""

    version: int
    plural: str
    before: Object | None
    after: Object | None


class Store:
    """`version` is the counter; versions before `oldest` cannot be watched from any more."""

    def __init__(self, *, history: int = 1000) -> None:
        self.version = 1
        self.oldest = 1
        self._objects: dict[Key, Object] = {}
        self._history: deque[Change] = deque(maxlen=history)
        self.watching: set[asyncio.Queue[Any]] = set()  # each gets every change
        self._uids = itertools.count(1)

    # --- reading --------------------------------------------------------------------------------

    def get(self, key: Key) -> Object:
        """A copy of the object; raises Refused (404)."""
        return copy.deepcopy(self._found(key))

    def all(self, plural: str, namespace: str = "") -> list[Object]:
        """Copies of all objects of a resource, in a namespace or in all of them."""
        return [
            copy.deepcopy(found)
            for key, found in sorted(self._objects.items(), key=lambda item: str(item[0]))
            if key.plural == plural and namespace in {"", key.namespace}
        ]

    def _found(self, key: Key) -> Object:
        try:
            return self._objects[key]
        except KeyError:
            raise refusals.not_found(key.plural, key.name) from None

    # --- writing --------------------------------------------------------------------------------

    def create(self, plural: str, namespace: str, body: Object) -> Object:
        """Add an object; raises Refused (409 where there is one of that name)."""
        made = copy.deepcopy(body)
        metadata = made.setdefault("metadata", {})
        number = next(self._uids)
        name, kind = metadata.get("name"), KINDS[plural]
        if not name:
            raise refusals.invalid(
                kind, "", "metadata.name: Required value: name or generateName is required"
            )
        key = Key(plural, namespace, name)
        if key in self._objects:
            raise refusals.already_exists(plural, name)
        made["apiVersion"], made["kind"] = GROUPS.get(plural, "v1"), kind
        metadata["uid"] = f"00000000-0000-4000-8000-{number:012x}"
        metadata["creationTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if namespace:
            metadata["namespace"] = namespace
        check_metadata(kind, name, metadata)
        return self._write(key, None, made)

    def change(
        self, key: Key, edit: Callable[[Object], Object], *, dry_run: bool = False
    ) -> Object:
        """Put what `edit` makes of a copy; raises Refused where that is not allowed."""
        before = self._found(key)
        after = edit(copy.deepcopy(before))
        kind, metadata = KINDS[key.plural], after.get("metadata") or {}
        if metadata.get("name") != key.name:
            raise refusals.Refused(
                400,
                f"the name of the object ({metadata.get('name')}) does not match the name on the "
                f"URL ({key.name})",
            )
        version = metadata.get("resourceVersion")
        if version not in (None, "", before["metadata"]["resourceVersion"]):  # maybe no string
            raise refusals.modified_meanwhile(key.plural, key.name)
        metadata["resourceVersion"] = before["metadata"]["resourceVersion"]
        check_metadata(kind, key.name, metadata)
        for field in IMMUTABLE:
            if metadata.get(field) != before["metadata"].get(field):
                fault = refusals.immutable(f"metadata.{field}", metadata.get(field))
                raise refusals.invalid(kind, key.name, fault)
        _without_empty(metadata)
        if after == before or dry_run:
            return copy.deepcopy(after)
        return self._write(key, before, after)

    def delete(self, key: Key) -> Object:
        """Take an object away; what is returned has the version of the deletion."""
        before = self._found(key)
        del self._objects[key]
        self._happened(key.plural, before, None)
        return copy.deepcopy(before)

    def _write(self, key: Key, before: Object | None, after: Object) -> Object:
        after["metadata"]["resourceVersion"] = str(self.version + 1)
        self._objects[key] = after
        self._happened(key.plural, before, after)
        return copy.deepcopy(after)

    # --- what happened --------------------------------------------------------------------------

    def since(self, version: int) -> list[Change]:
        """What happened after `version`; raises Refused (410) where that is forgotten."""
        if version < self.oldest:
            raise refusals.expired(version, self.oldest)
        return [change for change in self._history if change.version > version]

    def tick(self) -> None:
        """Something was written in the cluster that no client here looks at."""
        self.version += 1

    def forget(self) -> None:
        """Nothing before now can be watched from any more."""
        self._history.clear()
        self.oldest = self.version

    def _happened(self, plural: str, before: Object | None, after: Object | None) -> None:
        self.version += 1
        if len(self._history) == self._history.maxlen:
            self.oldest = self._history[0].version
        change = Change(self.version, plural, before, after)
        self._history.append(change)
        for queue in self.watching:
            queue.put_nowait(change)


def _without_empty(metadata: Object) -> None:
    """The real server leaves out empty maps, so a patch that adds one changes nothing."""
    for field in ("annotations", "labels"):
        if field in metadata and not metadata[field]:
            del metadata[field]


def events_of(change: Change, matches: Callable[[Object], bool]) -> Iterator[tuple[str, Object]]:
    """What a watch with a selector reports of a change: its type and the object."""
    was = change.before is not None and matches(change.before)
    now = change.after is not None and matches(change.after)
    if now and change.after is not None:
        yield ("MODIFIED" if was else "ADDED"), change.after
    elif was and change.before is not None:
        gone = copy.deepcopy(change.after or change.before)
        gone["metadata"]["resourceVersion"] = str(change.version)
        yield "DELETED", gone
