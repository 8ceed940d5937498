"""Prepares the node for a change: notifies the cluster's other GPU clients, and waits for their
pods to go.

What is still to do is read from the Node each time, so it does not matter where an earlier attempt,
or an earlier agent, has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from nodeagent.backoff import Backoff
from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.cluster.drain.changes import leaving_pods, preparations
from nodeagent.cluster.drain.node import DrainedNode, undone
from nodeagent.cluster.drain.pods import Pod, PodSelector
from nodeagent.cluster.drain.restore import Restore
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.problems import Code, Problem

log = structlog.get_logger(__name__)


class Preparation:
    """Prepares one node, and repeats what failed.

    A failed attempt is repeated with backoff and not with each look at the GPUs, since it may send
    pods away and bring them back.
    """

    def __init__(self, node: DrainedNode, restore: Restore) -> None:
        self._node = node
        self._restore = restore
        self._backoff = Backoff(*node.intervals.prepare)
        self._desired: DesiredNode | None = None  # what the attempts so far were for
        self._failure: tuple[Problem, ...] = ()
        self._timer: asyncio.TimerHandle | None = None

    async def prepare(self, desired: DesiredNode | None) -> tuple[Problem, ...]:
        """Do what the settings ask for before a change; problems mean that it could not be done.

        Another desired state is always tried at once, and that of the same text is another
        configuration's.
        """
        settings = self._node.settings
        if not (settings.cordon or settings.taints or settings.clients != "nothing"):
            return ()
        if desired != self._desired:
            self._backoff.reset()
            self.forget()
        if self._failure:
            return self._failure
        async with self._restore.touching():
            problems = await self._attempt()
        self.forget()
        self._desired = desired
        if problems:
            self._failure = problems
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._backoff.next(), self._retry)
        else:
            self._backoff.reset()
        return problems

    def forget(self) -> None:
        """The next attempt may be at once, and no round is requested for it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._failure = None, ()

    def server_answers(self) -> None:
        """What failed because the API server did not answer is tried at once."""
        if any(problem.code is Code.CLUSTER for problem in self._failure):
            self._backoff.reset()
            self._retry()

    def _retry(self) -> None:
        self.forget()
        self._node.wake("the preparation is retried")

    async def _attempt(self) -> tuple[Problem, ...]:
        try:
            node = await self._node.patch_all(
                lambda node: preparations(node, self._node.settings),
                within=self._node.intervals.notify,
            )
        except ClusterFault as fault:
            what = (
                "the GPUs are not changed, because their other clients in the cluster cannot be "
                "notified"
            )
            return (undone(what, fault),)
        if self._node.settings.clients != "pauseLabels":
            return ()
        return await self._pods_gone(leaving_pods(node.labels))

    async def _pods_gone(self, selectors: Sequence[PodSelector]) -> tuple[Problem, ...]:
        loop, seconds = asyncio.get_running_loop(), self._node.settings.pods_deadline
        deadline = loop.time() + seconds
        backoff = Backoff(*self._node.intervals.leaving_pods)
        while selectors:
            pods = await self._list(within=max(deadline - loop.time(), 1.0))
            found = (_still_there(selector, pods, seconds) for selector in selectors)
            problems = tuple(problem for problem in found if problem)
            if not problems:
                break
            if loop.time() >= deadline:
                if self._node.pods_fault is not None:
                    log.warning("pods cannot be listed", error=self._node.pods_fault.message)
                return problems
            await asyncio.sleep(min(backoff.next(), max(0.0, deadline - loop.time())))
        return ()

    async def _list(self, *, within: float) -> tuple[Pod, ...] | None:
        try:
            return await self._node.list_pods(within=min(self._node.intervals.answer, within))
        except ClusterFault:
            return None


def _still_there(
    selector: PodSelector, pods: tuple[Pod, ...] | None, seconds: float
) -> Problem | None:
    """Unfinished pods that still match; `pods` None: it is not known which are here."""
    if pods is None:
        who = f"whether the pods {selector} have gone is not known"
        look = "run `nodeagent check`: it says why pods cannot be listed"
    elif left := [pod for pod in pods if not pod.finished and selector.matches(pod)]:
        who = f"the pods {', '.join(map(str, left))} ({selector}) have not gone"
        look = f"find out why: `kubectl describe pod -n {left[0].namespace} {left[0].name}`"
    else:
        return None
    return Problem(
        Code.IN_USE,
        f"{who} within {seconds:g} s, so the GPUs were not changed",
        f"{look}; the agent retries",
    )
