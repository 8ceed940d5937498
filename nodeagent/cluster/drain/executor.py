"""Executes the steps around a change: notifies the cluster's other GPU clients, and puts back.

What is still to do is read from the Node each time, so it does not matter where an earlier attempt,
or an earlier agent, has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

import structlog

from nodeagent.backoff import Backoff
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import ClusterFault, ObjectMissing, WriteConflict
from nodeagent.cluster.drain.node_access import NodePods, OwnNode, facts_of
from nodeagent.cluster.drain.plan import Rules, prepare
from nodeagent.cluster.drain.steps import (
    AwaitAllocatable,
    AwaitPodsGone,
    DeletePods,
    EvictPod,
    NodeFacts,
    PatchNode,
    PodFact,
    PodSelector,
    Step,
    pods_left,
    still_there,
)
from nodeagent.plan.plan import NodePlan
from nodeagent.plan.problems import Code, Problem

log = structlog.get_logger(__name__)

_MOST_CONFLICTS = 10


@dataclass(frozen=True, slots=True)
class ExecutorIntervals:
    """Times in seconds. `notify`: how long a change of the Node is tried; `look`: between two looks
    at pods that are to go, from short to long; `answer`: how long the API server may take.
    """

    notify: float = 10.0
    look: tuple[float, float] = (0.5, 5.0)
    answer: float = 10.0


class DrainExecutor:
    """For one node; `pods_deadline` is how many seconds pods get to go."""

    def __init__(
        self,
        access: ClusterAccess,
        node: OwnNode,
        pods: NodePods,
        *,
        rules: Rules,
        pods_deadline: float,
        intervals: ExecutorIntervals,
    ) -> None:
        self._access = access
        self._node = node
        self._pods = pods
        self._rules = rules
        self._pods_deadline = pods_deadline
        self._intervals = intervals

    async def prepare(self, todo: NodePlan) -> tuple[Problem, ...]:
        """Do what has to be done before; problems mean that it could not be."""
        try:
            node = await self._node.patch_all(
                lambda node: prepare(todo, node, self._rules), within=self._intervals.notify
            )
        except ClusterFault as fault:
            message = (
                "the GPUs are not changed, since their other users in the cluster cannot be "
                f"notified before: {fault.message}"
            )
            return (Problem(Code.CLUSTER, message, fault.remedy or "it is tried again"),)
        left = prepare(todo, node, self._rules)
        return await self._pods_gone([s.selector for s in left if isinstance(s, AwaitPodsGone)])

    async def conclude(
        self,
        steps_of: Callable[[NodeFacts], Sequence[Step]],
        await_offer: Callable[[AwaitAllocatable], None],
    ) -> None:
        """Do what is left by `steps_of`, up to where something has to be awaited.

        Raises `ClusterFault`; then some of it may be done, and the rest is still to do.
        """
        deleted: list[PodSelector] = []  # once is enough: what comes in their place stays
        for _ in range(_MOST_CONFLICTS):
            view = await self._node.read()
            try:
                for step in steps_of(facts_of(view)):
                    match step:
                        case PatchNode():
                            view = await self._node.patch(view, step)
                        case DeletePods(selector):
                            if selector not in deleted:
                                await self._delete(selector)
                                deleted.append(selector)
                        case AwaitAllocatable():
                            await_offer(step)
                            return
                        case EvictPod() | AwaitPodsGone():
                            raise AssertionError(step)  # those are steps before a change
                        case _:
                            assert_never(step)
            except WriteConflict:
                continue
            return
        raise WriteConflict("the Node changes faster than it can be written")

    async def _delete(self, selector: PodSelector) -> None:
        for pod in await self._pods.list_now(within=self._intervals.answer):
            if pod.leaving or not selector.matches(pod):
                continue
            try:
                await self._access.delete_pod(pod.namespace, pod.name, uid=pod.uid)
            except (ObjectMissing, WriteConflict):
                log.debug("a pod has gone by itself", pod=str(pod))
            else:
                log.info("a pod of the device plugin is deleted", pod=str(pod))

    async def _pods_gone(self, selectors: Sequence[PodSelector]) -> tuple[Problem, ...]:
        if not selectors:
            return ()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._pods_deadline
        backoff = Backoff(*self._intervals.look)
        while True:
            node = NodeFacts(pods=await self._listed(deadline - loop.time()))
            left = [(selector, pods_left(selector, node)) for selector in selectors]
            waiting = [(selector, pods) for selector, pods in left if pods is None or pods]
            if not waiting:
                return ()
            if loop.time() >= deadline:
                if self._pods.fault is not None:
                    log.warning("pods cannot be listed", error=self._pods.fault.message)
                return tuple(still_there(who, pods, self._pods_deadline) for who, pods in waiting)
            await asyncio.sleep(min(backoff.next(), max(0.0, deadline - loop.time())))

    async def _listed(self, left: float) -> tuple[PodFact, ...] | None:
        try:
            return await self._pods.list_now(within=min(self._intervals.answer, max(left, 1.0)))
        except ClusterFault:
            return None


class PreparationRetries:
    """When a change that could not be prepared is tried again: not with each look at the GPUs,
    since an attempt may send pods away and bring them back.

    `again` are the seconds after a failure before the next attempt, at first and at most.
    """

    def __init__(self, *, again: tuple[float, float], wake: Callable[[str], None]) -> None:
        self._backoff = Backoff(*again)
        self._wake = wake
        self._desired: object = None  # what the attempts so far were for
        self._problems: tuple[Problem, ...] = ()
        self._timer: asyncio.TimerHandle | None = None

    def put_off(self, desired: object) -> tuple[Problem, ...]:
        """Why this is not tried yet; empty when it may be. Another desired state always may, and
        that of the same text is another configuration's.
        """
        if desired != self._desired:
            self._backoff.reset()
            self.forget()
        return self._problems

    def ended(self, desired: object, problems: tuple[Problem, ...]) -> None:
        """An attempt is over; with problems, it failed."""
        self.forget()
        self._desired = desired
        if not problems:
            self._backoff.reset()
            return
        self._problems = problems
        self._timer = asyncio.get_running_loop().call_later(self._backoff.next(), self._try_again)

    def forget(self) -> None:
        """The next attempt may be at once, and the loop is not woken for it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._problems = None, ()

    def server_answers(self) -> None:
        """What failed because the API server did not answer is tried at once."""
        if any(problem.code is Code.CLUSTER for problem in self._problems):
            self._backoff.reset()
            self._try_again()

    def _try_again(self) -> None:
        self.forget()
        self._wake("what could not be prepared is tried again")
