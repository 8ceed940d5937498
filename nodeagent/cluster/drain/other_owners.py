"""Whether somebody else splits this node's GPUs, asked of the cluster no oftener than needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import structlog

from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.drain.own_node import OwnNode, facts_of
from nodeagent.cluster.drain.owners import Owner, claims, owned_by_others
from nodeagent.cluster.drain.pods_of_node import PodsOfNode
from nodeagent.plan.problems import Problem
from nodeagent.reconcile.event_log import EventType

log = structlog.get_logger(__name__)

Tell = Callable[[EventType, str], None]


class OtherOwners:
    """Knows the node by its view and its pods.

    The pods are listed at first, while something is to be done, and while somebody is in the way:
    `within` seconds may that take, and it is done once in `unless_asked` seconds. Who does not
    answer changes nothing: then what was heard last counts, else the node's labels.
    """

    def __init__(
        self,
        node: OwnNode,
        pods: PodsOfNode,
        *,
        tolerated: Collection[Owner],
        source: str,
        tell: Tell,
        within: float,
        unless_asked: float,
    ) -> None:
        self._node = node
        self._pods = pods
        self._tolerated = tolerated
        self._tell = tell
        self._within = within
        self._unless_asked = unless_asked
        self._told: tuple[Problem, ...] = ()
        self._unsure = False
        self.source = source
        self.refusing = False  # somebody was found when there was something to do

    async def look(
        self, view: NodeView | None, *, working: bool, unfinished: bool
    ) -> NodeView | None:
        """Find out what has to be known now; the Node as far as it is known.

        `working`: GPUs are about to be changed; `unfinished`: some are not as planned.
        """
        if self._pods.known is None or working or self.refusing:
            asked = await self._pods.refresh(within=self._within, unless_asked=self._unless_asked)
            if asked and view is None:
                view = await self._read()
        found = self.objections(view)
        self.refusing = unfinished and bool(found)
        self._say(found, working=working)
        return view

    def objections(self, view: NodeView | None) -> tuple[Problem, ...]:
        """Everybody who is here by what is known now, and not tolerated."""
        node = facts_of(view, self._pods.known)
        return owned_by_others(node, source=self.source, tolerated=self._tolerated)

    def may_have_paused(self, view: NodeView | None) -> bool:
        """Whether somebody is here, tolerated or not, who pauses the same labels for his work."""
        here = claims(facts_of(view, self._pods.known), source=self.source)
        return any(claim.owner is Owner.MIG_MANAGER for claim in here)

    async def _read(self) -> NodeView | None:
        """Before the Node has been seen for the first time."""
        try:
            async with asyncio.timeout(self._within):
                return await self._node.read()
        except (ClusterFault, TimeoutError) as error:
            log.debug("the Node cannot be read", error=str(error))
            return None

    def _say(self, found: tuple[Problem, ...], *, working: bool) -> None:
        if found and found != self._told and not self.refusing:
            for problem in found:
                log.warning("somebody else splits the GPUs", who=problem.message)
                self._tell(EventType.OTHER_OWNER, f"{problem.message} ({problem.remedy})")
        self._told = found
        fault = self._pods.fault
        if fault is None:
            self._unsure = False
        elif working and not self._unsure:
            self._unsure = True
            by = "by what was heard last" if self._pods.known is not None else "by its labels alone"
            told = f"whether anybody else splits the GPUs is judged {by}: {fault.message}"
            log.warning("the pods of the node are not known", error=fault.message)
            self._tell(EventType.UNCHECKED, told)
