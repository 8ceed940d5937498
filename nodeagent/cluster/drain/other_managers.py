"""Watches for other managers of this node's GPUs; while one is here, the agent refuses to act."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import structlog

from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.cluster.drain.node import DrainedNode
from nodeagent.cluster.drain.owners import OtherManager, claims, owned_by_others
from nodeagent.plan.problems import Problem
from nodeagent.reconcile.event_log import EventType

log = structlog.get_logger(__name__)

# Who else answers a plan source of ours, by the same keys of the Node.
_ANSWERING: Final = {"nos": OtherManager.NOS, "mig-config": OtherManager.MIG_MANAGER}


@dataclass(slots=True, eq=False)
class OtherManagers:
    """Detects them by the Node's view and its pods.

    The pods are listed at first, while work is due, and while another manager objects. Without an
    answer the last list counts, else the node's labels. `source` is the agent's own plan source.
    """

    node: DrainedNode
    source: str
    refusing: bool = False  # another manager was found when there was work
    _reported: tuple[Problem, ...] = ()
    _unchecked: bool = False  # it was reported that the pods are not known

    async def refresh(self, *, working: bool, unfinished: bool) -> None:
        """Ask for what has to be known now.

        `working`: GPUs are about to be changed; `unfinished`: some are not as planned.
        """
        node = self.node
        needed = node.pods is None or working or self.refusing
        if needed and await node.refresh_pods() and node.view is None:
            await self._read_node()
        found = self.objections()
        self.refusing = unfinished and bool(found)
        self._report(found, working=working)

    def objections(self) -> tuple[Problem, ...]:
        """Managers of this node's GPUs that are not tolerated, by what is known of the node."""
        node = self.node
        tolerated = node.rules.tolerated
        return owned_by_others(node.known, node.pods, source=self.source, tolerated=tolerated)

    @property
    def answers(self) -> bool:
        """Whether nothing is done, and a manager is here that answers the plan source itself.

        Any other leaves the source without an answer, and nos' partitioner then plans nothing for
        the whole cluster: so what is refused because of it is answered like any refusal.
        """
        return self.refusing and _ANSWERING.get(self.source) in self._here()

    def may_have_paused(self) -> bool:
        """Whether a manager is here, tolerated or not, that pauses the same labels for its work."""
        return OtherManager.MIG_MANAGER in self._here()

    def _here(self) -> Collection[OtherManager]:
        """Tolerated ones, too."""
        return claims(self.node.known, self.node.pods, source=self.source).keys()

    async def _read_node(self) -> None:
        """Before the Node has been seen for the first time."""
        try:
            async with asyncio.timeout(self.node.intervals.round_answer):
                view = await self.node.read()
            self.node.view = self.node.view or view  # it may have been seen meanwhile
        except (ClusterFault, TimeoutError) as error:
            log.debug("the Node cannot be read", error=str(error))

    def _report(self, found: tuple[Problem, ...], *, working: bool) -> None:
        if found and found != self._reported and not self.refusing:
            for problem in found:
                self.node.report(EventType.OTHER_OWNER, f"{problem.message} ({problem.remedy})")
        self._reported = found
        fault = self.node.pods_fault
        if fault is None:
            self._unchecked = False
        elif working and not self._unchecked:
            self._unchecked = True
            by = "by the last list" if self.node.pods is not None else "by its labels alone"
            message = f"whether another manager splits the GPUs is judged {by}: {fault.message}"
            self.node.report(EventType.UNCHECKED, message)
