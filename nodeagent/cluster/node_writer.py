"""Keeps annotations, labels, conditions and taints of one Node as wanted; sends the difference.

They are three keys of one keeper: metadata, status and taints take a request each.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from typing import Final, Literal, NoReturn

from nodeagent.cluster.client import requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.cluster.client.node_view import (
    ANNOTATIONS,
    CONDITIONS,
    LABELS,
    NodeView,
    Wanted,
    difference,
    is_newer,
    patch_of,
    too_large,
    view_of,
)
from nodeagent.cluster.keeper import LOOK_LIMIT, Keeper, WriteIntervals

_INTERVALS: Final = WriteIntervals()
_MAX_BYTES: Final = 128 * 1024  # of an annotation; all writers together have 256 KiB
Part = Literal["metadata", "status", "taints"]


class NodeWriter:
    """Keeps the Node `name` as wanted while `run` runs.

    `observe` gets what is there from a follower. `on_fault` gets a fault when writing breaks or
    breaks in another way, and None when nothing that is still to be written has failed.
    `on_contest` gets the keys that another program sets back again and again.
    `wall` gives the time of day in UTC, for conditions.
    """

    def __init__(
        self,
        access: ClusterAccess,
        name: str,
        *,
        on_fault: Callable[[ClusterFault | None], None] = lambda _: None,
        on_contest: Callable[[tuple[str, ...]], None] = lambda _: None,
        intervals: WriteIntervals = _INTERVALS,
        clock: Callable[[], float] = lambda: asyncio.get_running_loop().time(),
        jitter: Callable[[], float] = random.random,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._access = access
        self._name = name
        self._wall = wall
        self._view: NodeView | None = None
        self._keeper = Keeper[Part, Wanted](
            self,
            intervals,
            on_fault=on_fault,
            on_contest=lambda part: on_contest(part.keys),
            clock=clock,
            jitter=jitter,
        )

    def want(self, wanted: Wanted) -> dict[str, int]:
        """Want this from now on, in place of what was wanted before.

        Annotations that are too large are left out, and returned with their bytes. Raises
        ValueError for a key or a condition that views leave out.
        """
        unseen = [k for k in wanted.annotations if not k.startswith(ANNOTATIONS)]
        unseen += [k for k in wanted.labels if not k.startswith(LABELS)]
        unseen += wanted.conditions.keys() - CONDITIONS
        if unseen:
            raise ValueError(f"wanted but never seen: {', '.join(unseen)}")
        left_out = too_large(wanted.annotations, _MAX_BYTES)
        kept = {key: text for key, text in wanted.annotations.items() if key not in left_out}
        self._keeper.want("metadata", Wanted(kept, wanted.labels))
        self._keeper.want("status", Wanted(conditions=wanted.conditions))
        self._keeper.want("taints", Wanted(taints=wanted.taints))
        return left_out

    def observe(self, view: NodeView | None) -> None:
        """The Node is like this; None: there is none.

        Ignores views older than the last write. Where none follow that are as new, the Node is
        read: an etcd that was restored from a backup gives lower versions.
        """
        known = self._view
        same = view is not None and known is not None and view.uid == known.uid
        if view and known and same and not is_newer(view.resource_version, known.resource_version):
            is_older = view.resource_version != known.resource_version
            self._keeper.look_within(LOOK_LIMIT if is_older else inf)
            return
        self._view = view
        self._keeper.look_within(inf)
        self._keeper.changed(anew=not same)

    @property
    def fault(self) -> ClusterFault | None:
        """Why something that is wanted is not written."""
        return self._keeper.fault

    @property
    def contested(self) -> tuple[str, ...]:
        """The keys that another program keeps setting to something else; empty when none does."""
        return tuple(key for part in self._keeper.contested for key in part.keys)

    async def settled(self) -> None:
        """Wait until there is nothing that could be written now."""
        await self._keeper.settled()

    async def run(self) -> NoReturn:
        await self._keeper.run()

    # --- as the keeper's adapter ------------------------------------------------------------------

    def difference(self, _: Part, wanted: Wanted) -> Wanted | None:
        return difference(wanted, self._view) if self._view else None

    async def send(self, _: Part, part: Wanted) -> None:
        before = self._view
        request = patch_of(self._name, part, before or NodeView(), self._wall())
        self._learn(view_of(await self._access.send(request)), before)

    async def look(self) -> None:
        """A follower reports no Node that differs only in what views leave out. What it reports
        without fail is that the Node has gone or is another one.
        """
        before = self._view
        node = (await self._access.listed(requests.list_node(self._name))).first
        if node:
            self._learn(view_of(node), before)

    def _learn(self, view: NodeView, before: NodeView | None) -> None:
        """The server's answer to a request that was made when `before` was known.

        Of an etcd that was restored from a backup its version is lower than what was known before.
        A follower may have been faster, and know more by now.
        """
        known = self._view
        if known is None or known.uid != view.uid:
            return
        if known is before or is_newer(view.resource_version, known.resource_version):
            self._view = view
