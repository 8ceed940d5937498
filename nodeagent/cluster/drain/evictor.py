"""`whenInUse: evict`: evicts the pods that hold what must go, and waits for them.

By the Eviction API, which keeps to disruption budgets; what it refuses is reported and requested
again after a while. Nothing is killed or deleted. While pods leave, the node stays cordoned if that
is wanted; once all that could be done is refused, it does not.

Also detects pods that block a GPU only because kubelets before 1.34 go on listing what a finished
pod was given; the API server is asked for those only while such a pod is all that is in the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import structlog

from nodeagent.backoff import Backoff
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import (
    ClusterFault,
    DisruptionRefused,
    NotAllowed,
    ObjectMissing,
    WriteConflict,
)
from nodeagent.cluster.drain.eviction import Evictions, asks_for_eviction, evictions
from nodeagent.cluster.drain.node_access import NodePods, OwnNode
from nodeagent.cluster.drain.plan import Rules, make_room
from nodeagent.cluster.drain.steps import EvictPod, NodeFacts, PodFact
from nodeagent.cluster.kubelet.allocations import PodName
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import User
from nodeagent.plan.plan import GpuPlan, NodePlan, Policy, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.active_plan import Judgement
from nodeagent.views.text import users

log = structlog.get_logger(__name__)

Objecting = Callable[[NodePlan], Awaitable[tuple[Problem, ...]]]


@dataclass(frozen=True, slots=True)
class EvictionIntervals:
    """Times in seconds. Pods that leave are looked at after `first`, then after a tenth of the time
    they take; what was refused, or did not help, is tried again after `again`, which doubles. No
    wait is longer than `longest`. `answer`: how long the API server may take.
    """

    first: float = 0.5
    again: float = 5.0
    longest: float = 60.0
    answer: float = 10.0


@dataclass(frozen=True, slots=True)
class _Goal:
    """The desired state, and the plan that leads there from the GPUs as they are."""

    desired: DesiredNode
    plan: NodePlan


class Evictor:
    """Evicts what the last `look` asks for while `run` runs.

    `objecting` is asked before a pod is evicted for a plan. `wake` is called when the GPUs should
    be observed again, `evicted` after each eviction, `uncordon` when no cordon is needed any more.
    """

    def __init__(
        self,
        access: ClusterAccess,
        node: OwnNode,
        pods: NodePods,
        *,
        rules: Rules,
        policy: Policy,
        intervals: EvictionIntervals,
        objecting: Objecting,
        wake: Callable[[str], None],
        evicted: Callable[[EvictPod], None],
        uncordon: Callable[[], None],
    ) -> None:
        self._access = access
        self._node = node
        self._pods = pods
        self._rules = rules
        self._policy = policy
        self._intervals = intervals
        self._objecting = objecting
        self._wake = wake
        self._evicted = evicted
        self._uncordon = uncordon
        self._goal: _Goal | None = None
        self._news = asyncio.Event()  # another desired state than before
        self._leaving: dict[str, str] = {}  # uids of pods that leave, by name
        self._meant: dict[str, str] = {}  # uids by name, as first seen since the look
        self._leaving_since = 0.0
        self._backoff = Backoff(intervals.again, intervals.longest)
        self._next_attempt = 0.0
        self._refused: tuple[Problem, ...] = ()
        self.problems: tuple[Problem, ...] = ()
        self.needs_cordon = False

    def look(self, judgement: Judgement) -> None:
        """The GPUs are like this now, and nothing speaks against what is planned for them."""
        plan = judgement.plan
        before, self._goal = self._goal, None
        self._meant.clear()
        if plan is not None and asks_for_eviction(plan, judgement.desired):
            self._goal = _Goal(judgement.desired, plan)
        if _desired(before) != _desired(self._goal):
            self._news.set()

    def forget(self) -> None:
        """No pod is to be evicted now."""
        if self._goal is not None:
            self._goal = None
            self._news.set()

    async def run(self) -> NoReturn:
        """Evict and wait until cancelled."""
        while True:
            self._news.clear()
            if self._goal is None:
                self._begin_anew()
                await self._news.wait()
                self._begin_anew()
                continue
            pause = await self._turn(self._goal)
            try:
                # Looks that bring nothing new do not make it shorter: they may be many.
                async with asyncio.timeout(pause):
                    await self._news.wait()
            except TimeoutError:
                continue
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._backoff.reset()
        self._next_attempt, self._refused = 0.0, ()
        if self._goal is None:
            self._leaving.clear()
            self._report((), cordon=False)

    # --- one turn ---------------------------------------------------------------------------------

    async def _turn(self, goal: _Goal) -> float:
        """Evict those that have to go; returns the seconds until the next turn."""
        try:
            pods = await self._pods.list_now(within=self._intervals.answer)
            found = evictions(goal.plan, goal.desired, self._policy, NodeFacts(pods=pods))
            return await self._work_off(goal, found, pods)
        except ClusterFault as fault:
            self._report((_not_asked(fault),), cordon=self.needs_cordon)
            return self._backoff.next()

    async def _work_off(self, goal: _Goal, found: Evictions, pods: tuple[PodFact, ...]) -> float:
        there = {str(pod): pod.uid for pod in pods}
        were_leaving = bool(self._leaving)
        self._leaving |= {name: there[name] for name in found.leaving}
        self._leaving = {n: uid for n, uid in self._leaving.items() if there.get(n) == uid}
        wanted = [p for p in found.wanted if self._is_meant(p, there)]
        if wanted and asyncio.get_running_loop().time() >= self._next_attempt:
            after = {gpu.before.key: gpu for gpu in found.then}
            gpus = tuple(after.get(gpu.before.key, gpu) for gpu in goal.plan.gpus)
            objections = await self._objecting(replace(goal.plan, gpus=gpus))
            if objections:
                self._report(objections, cordon=False)
                return self._backoff.next()
            await self._evict(wanted, there)
        elif not wanted:
            self._refused = ()
        self._report((*found.problems, *self._refused), cordon=bool(self._leaving) or were_leaving)
        return self._until_next(found, were_leaving=were_leaving)

    def _is_meant(self, pod: EvictPod, there: dict[str, str]) -> bool:
        """Whether it is here and not evicted yet. One that came under its name since the GPUs were
        observed (a StatefulSet's, say) may have been given nothing.
        """
        uid = there.get(str(pod))
        if uid is None or self._meant.setdefault(str(pod), uid) != uid:
            return False
        return str(pod) not in self._leaving

    def _until_next(self, found: Evictions, *, were_leaving: bool) -> float:
        now = asyncio.get_running_loop().time()
        if self._leaving:
            if not were_leaving:
                self._leaving_since = now
            took = now - self._leaving_since
            return min(max(self._intervals.first, took / 10), self._intervals.longest)
        if were_leaving or (found.wanted and not self._refused):
            # What is asked for was seen before they had gone.
            self._wake("pods that were in the way have gone")
        return self._backoff.next()

    async def _evict(self, wanted: Sequence[EvictPod], there: dict[str, str]) -> None:
        self.needs_cordon = True  # from now on `Restore` keeps it
        await self._node.patch_all(
            lambda node: make_room(Evictions(tuple(wanted)), node, self._rules),
            within=self._intervals.answer,
        )
        refused = []
        for pod in wanted:
            try:
                await self._access.evict_pod(pod.namespace, pod.name, uid=there[str(pod)])
            except (ObjectMissing, WriteConflict):
                continue  # it has gone, whatever has its name now
            except ClusterFault as fault:
                refused.append(_refusal(pod, fault))
                continue
            self._leaving[str(pod)] = there[str(pod)]
            log.info("a pod is evicted", pod=str(pod), reason=pod.reason)
            self._evicted(pod)
        self._refused = tuple(refused)
        if refused:
            pause = self._backoff.after(self._backoff.failures + 1)
            self._next_attempt = asyncio.get_running_loop().time() + pause

    def _report(self, problems: tuple[Problem, ...], *, cordon: bool) -> None:
        is_news, ends = problems != self.problems, self.needs_cordon and not cordon
        self.problems, self.needs_cordon = problems, cordon
        if ends:
            self._uncordon()
        if is_news:
            self._wake("what is known of evictions has changed")


def _desired(goal: _Goal | None) -> object:
    return goal and goal.desired


def _refusal(pod: EvictPod, fault: ClusterFault) -> Problem:
    if isinstance(fault, DisruptionRefused):
        remedy = "let the budget allow it, or end the pod; its eviction is asked for again"
    elif isinstance(fault, NotAllowed):
        remedy = fault.remedy
    else:
        remedy = "it is tried again"
    return Problem(Code.IN_USE, f"{pod.reason}, but {fault.message}", remedy)


def _not_asked(fault: ClusterFault) -> Problem:
    return Problem(
        Code.CLUSTER,
        f"no pod is evicted, since the API server cannot be asked: {fault.message}",
        fault.remedy or "it is tried again",
    )


KubeletSuspect = Callable[[Iterable[PodName]], None]
"""Takes pods that have ended although the kubelet lists them."""


class FinishedPods:
    """Checks while `run` runs what `look` was given last."""

    def __init__(
        self,
        pods: NodePods,
        *,
        suspect: KubeletSuspect | None,
        wake: Callable[[str], None],
        intervals: EvictionIntervals,
    ) -> None:
        self._pods = pods
        self._suspect = suspect
        self._wake = wake
        self._answer = intervals.answer
        self._backoff = Backoff(intervals.again, intervals.longest)
        self._listed: frozenset[PodName] = frozenset()
        self._due = asyncio.Event()

    def look(self, judgement: Judgement) -> None:
        """The GPUs are like this now."""
        if self._suspect is None:
            return
        before, self._listed = self._listed, _listed_only(judgement)
        if before != self._listed:
            self._backoff.reset()
        if self._listed:
            self._due.set()

    async def run(self) -> NoReturn:
        """Ask until cancelled; each look asks once at most."""
        while True:
            await self._due.wait()
            self._due.clear()
            over = await self._pods.ended(self._listed, within=self._answer)
            if over and self._suspect is not None:
                self._suspect(over)
                self._wake("pods have ended that the kubelet still lists")
            await asyncio.sleep(self._backoff.next())


def _listed_only(judgement: Judgement) -> frozenset[PodName]:
    """Pods on blocked GPUs of which only the kubelet knows."""
    blocked = [gpu for gpu in (judgement.plan.gpus if judgement.plan else ()) if _in_use(gpu)]
    everyone = [user for gpu in blocked for user in users(gpu.before) if user.pod]
    running = {_pod_of(user) for user in everyone if user.pid}
    return frozenset(_pod_of(user) for user in everyone) - running


def _in_use(gpu: GpuPlan) -> bool:
    return gpu.verdict is Verdict.BLOCKED and any(p.code is Code.IN_USE for p in gpu.problems)


def _pod_of(user: User) -> PodName:
    return PodName(user.namespace, user.pod)
