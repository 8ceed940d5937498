"""The agent's Node: follows it, and keeps annotations, labels, conditions and taints as wanted.

Only the difference is sent. Metadata, status and taints take a request each: they are three keys of
one keeper.
"""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Literal

from nodeagent.cluster.client import requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.cluster.client.node_view import NodeView, Wanted, difference, patch_of, read_node
from nodeagent.cluster.keeper import Keeper, WriteIntervals
from nodeagent.cluster.reflector import INTERVALS, Reflector, WatchIntervals

_WRITES: Final = WriteIntervals()
Part = Literal["metadata", "status", "taints"]


class KeptNode:
    """Follows the Node `name`, and keeps it as wanted, while `run` runs.

    `on_view` gets the view at first and whenever it is another one, and None when there is no such
    Node; a re-created Node is reported as None and then the new one. `on_following` and
    `on_writing` get a fault when that breaks, and None when it goes on. `on_overwritten` gets the
    keys that another program sets back again and again. All are called in the loop and must not
    take long. `wall` gives the time of day in UTC, for conditions.
    """

    def __init__(
        self,
        access: ClusterAccess,
        name: str,
        *,
        on_view: Callable[[NodeView | None], object],
        on_following: Callable[[ClusterFault | None], object] = lambda _: None,
        on_writing: Callable[[ClusterFault | None], object] = lambda _: None,
        on_overwritten: Callable[[tuple[str, ...]], object] = lambda _: None,
        watches: WatchIntervals = INTERVALS,
        writes: WriteIntervals = _WRITES,
        jitter: Callable[[], float] = random.random,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._access = access
        self._name = name
        self._on_view = on_view
        self._wall = wall
        self._reported: NodeView | None = None
        self._reflector = Reflector(
            access,
            requests.list_node(name),
            read_node,
            on_change=lambda _: self._report(),
            on_fault=on_following,
            intervals=watches,
            jitter=jitter,
        )
        self._keeper = Keeper[Part, Wanted](
            self,
            writes,
            on_fault=on_writing,
            on_overwritten=lambda part: on_overwritten(part.keys),
            jitter=jitter,
        )

    @property
    def view(self) -> NodeView | None:
        """The Node as it is now; None while there is none, or it was not seen yet."""
        return self._reflector.objects.get(self._name)

    @property
    def is_reachable(self) -> bool:
        return self._reflector.is_reachable

    @property
    def following_fault(self) -> ClusterFault | None:
        """Why the Node cannot be followed now."""
        return self._reflector.fault

    @property
    def fault(self) -> ClusterFault | None:
        """Why the Node cannot be followed, or something that is wanted is not written."""
        return self._reflector.fault or self._keeper.fault

    @property
    def overwritten(self) -> tuple[str, ...]:
        """The keys that another program keeps setting to something else; empty when none does."""
        return tuple(key for part in self._keeper.overwritten for key in part.keys)

    def want(self, wanted: Wanted) -> None:
        """Want this from now on, in place of what was wanted before. Keys and conditions that views
        leave out would be written again and again.
        """
        self._keeper.want("metadata", Wanted(wanted.annotations, wanted.labels))
        self._keeper.want("status", Wanted(conditions=wanted.conditions))
        self._keeper.want("taints", Wanted(taints=wanted.taints))

    async def settled(self) -> None:
        """Wait until there is nothing that could be written now."""
        await self._keeper.settled()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self._reflector.run(), name="follow the Node")
            parts.create_task(self._keeper.run(), name="write the Node")

    def _report(self) -> None:
        before, view = self._reported, self.view
        is_another = before is None or view is None or before.uid != view.uid
        self._reported = view
        self._keeper.changed(forget_sent=is_another)
        if before is not None and view is not None and is_another:
            self._on_view(None)
        self._on_view(view)

    # --- as the keeper's adapter ------------------------------------------------------------------

    def difference(self, _: Part, wanted: Wanted) -> Wanted | None:
        return difference(wanted, self.view) if self.view else None

    async def send(self, _: Part, part: Wanted) -> None:
        before = self.view or NodeView()
        request = patch_of(self._name, part, before, self._wall())
        view = await self._access.ask(request, read_node)
        if self._reflector.learn(view, before):
            self._report()

    async def read_again(self) -> None:
        """List the Node: a watch drops versions that differ only in what views leave out."""
        await self._reflector.list()
