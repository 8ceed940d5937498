"""The pods on this node: listed when somebody has to know, and otherwise not asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol, TypeVar

import structlog

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import ClusterFault, ClusterUnreachable
from nodeagent.cluster.drain.node_facts import PodFact
from nodeagent.cluster.drain.pod_facts import has_ended, pod_fact

log = structlog.get_logger(__name__)

_AT_ONCE = 8  # questions about single pods


class Named(Protocol):
    """A pod by its name, such as the kubelet's."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...


AnyName = TypeVar("AnyName", bound=Named)


class PodsOfNode:
    """What was last heard of them, and the ways to hear more. Times in seconds."""

    def __init__(self, access: ClusterAccess, node: str) -> None:
        self._access = access
        self._node = node
        self._asked_at = float("-inf")
        self.known: tuple[PodFact, ...] | None = None  # None: never listed
        self.fault: ClusterFault | None = None  # why the last list failed

    async def list_now(self, *, within: float) -> tuple[PodFact, ...]:
        """Ask for all of them; raises `ClusterFault`."""
        self._asked_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(within):
                listed = await self._access.list_pods(self._node)
            self.known, self.fault = tuple(map(pod_fact, listed)), None
        except TimeoutError as error:
            self.fault = _silent(f"the pods on {self._node}", within)
            raise self.fault from error
        except ClusterFault as fault:
            self.fault = fault
            raise
        return self.known

    async def refresh(self, *, within: float, unless_asked: float) -> bool:
        """Ask unless that was done in the last `unless_asked` seconds; whether it was asked.

        Where there is no answer, what was known stays so, and `fault` says why.
        """
        if asyncio.get_running_loop().time() - self._asked_at < unless_asked:
            return False
        try:
            await self.list_now(within=within)
        except ClusterFault as fault:
            log.debug("the pods of the node cannot be listed", error=fault.message)
        return True

    async def ended(self, pods: Iterable[AnyName], *, within: float) -> frozenset[AnyName]:
        """Which of them have ended for sure; what cannot be found out in time has not.

        Each is asked for by itself, because only that is answered from the newest there is: a
        new pod may have the name of one that has ended.
        """
        asked = list(pods)
        at_once = asyncio.Semaphore(_AT_ONCE)
        over: set[AnyName] = set()

        async def ask(pod: AnyName) -> None:
            async with at_once:
                found = await self._access.pod(pod.namespace, pod.name)
            if found is not None and has_ended(found):
                over.add(pod)

        try:
            async with asyncio.timeout(within):
                answers = await asyncio.gather(*map(ask, asked), return_exceptions=True)
        except TimeoutError:
            log.debug("it is not known which pods have ended", error="no answer in time")
        else:
            for answer in answers:
                if isinstance(answer, ClusterFault):
                    log.debug("it is not known whether a pod has ended", error=answer.message)
                elif answer is not None:
                    raise answer
        return frozenset(over)


def _silent(asked: str, within: float) -> ClusterUnreachable:
    return ClusterUnreachable(f"the API server has not told {asked} within {within:g} s")
