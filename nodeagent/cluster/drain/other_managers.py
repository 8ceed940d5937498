"""Watches for other managers of this node's GPUs; while one is here, the agent refuses to act."""

from __future__ import annotations

import asyncio

import structlog

from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.cluster.drain.node import DrainedNode
from nodeagent.cluster.drain.owners import Owner, claims, owned_by_others
from nodeagent.plan.problems import Problem
from nodeagent.reconcile.event_log import EventType

log = structlog.get_logger(__name__)


class OtherManagers:
    """Detects them by the Node's view and its pods.

    The pods are listed at first, while work is due, and while another manager objects. Without an
    answer the last list counts, else the node's labels. `source` is the agent's own plan source.
    """

    def __init__(self, node: DrainedNode, source: str) -> None:
        self._node = node
        self._reported: tuple[Problem, ...] = ()
        self._unchecked = False  # it was reported that the pods are not known
        self.source = source
        self.refusing = False  # another manager was found when there was work

    async def refresh(self, *, working: bool, unfinished: bool) -> None:
        """Ask for what has to be known now.

        `working`: GPUs are about to be changed; `unfinished`: some are not as planned.
        """
        node = self._node
        needed = node.pods is None or working or self.refusing
        if needed and await node.refresh_pods() and node.view is None:
            await self._read_node()
        found = self.objections()
        self.refusing = unfinished and bool(found)
        self._report(found, working=working)

    def objections(self) -> tuple[Problem, ...]:
        """Managers of this node's GPUs that are not tolerated, by what is known of the node."""
        node = self._node
        tolerated = node.rules.tolerated
        return owned_by_others(node.known, node.pods, source=self.source, tolerated=tolerated)

    def may_have_paused(self) -> bool:
        """Whether a manager is here, tolerated or not, that pauses the same labels for its work."""
        return Owner.MIG_MANAGER in claims(self._node.known, self._node.pods, source=self.source)

    async def _read_node(self) -> None:
        """Before the Node has been seen for the first time."""
        try:
            async with asyncio.timeout(self._node.intervals.round_answer):
                self._node.view = await self._node.read()
        except (ClusterFault, TimeoutError) as error:
            log.debug("the Node cannot be read", error=str(error))

    def _report(self, found: tuple[Problem, ...], *, working: bool) -> None:
        if found and found != self._reported and not self.refusing:
            for problem in found:
                log.warning("another manager splits the GPUs", who=problem.message)
                self._node.report(EventType.OTHER_OWNER, f"{problem.message} ({problem.remedy})")
        self._reported = found
        fault = self._node.pods_fault
        if fault is None:
            self._unchecked = False
        elif working and not self._unchecked:
            self._unchecked = True
            by = "by the last list" if self._node.pods is not None else "by its labels alone"
            message = f"whether another manager splits the GPUs is judged {by}: {fault.message}"
            log.warning("the pods of the node are not known", error=fault.message)
            self._node.report(EventType.UNCHECKED, message)
