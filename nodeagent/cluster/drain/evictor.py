"""`whenInUse: evict`: the pods that hold what must go are asked to leave, and waited for.

Asked by the Eviction API, which keeps to disruption budgets; what it refuses is told and asked
again after a while. Nobody is killed or deleted. While pods leave, the node stays cordoned if that
is wanted; once all that could be done is refused, it does not.
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
from nodeagent.plan.observed import ObservedNode, User
from nodeagent.plan.plan import GpuPlan, NodePlan, Policy, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.active_plan import Judgement
from nodeagent.views.text import users

log = structlog.get_logger(__name__)

Objecting = Callable[[NodePlan], Awaitable[tuple[Problem, ...]]]
"""What speaks against a plan, asked before anybody is evicted for it."""


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
class Situation:
    """A plan for the GPUs as they are."""

    plan: NodePlan
    judgement: Judgement
    observed: ObservedNode


@dataclass(frozen=True, slots=True)
class EvictionReports:
    """Whom it tells what: a look at the GPUs is worth it; an eviction was granted; a cordon is
    needed no more.
    """

    wake: Callable[[str], None]
    evicted: Callable[[EvictPod], None]
    uncordon: Callable[[], None]


class Evictor:
    """Evicts what the last `look` asks for while `run` runs."""

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
        telling: EvictionReports,
    ) -> None:
        self._access = access
        self._node = node
        self._pods = pods
        self._rules = rules
        self._policy = policy
        self._intervals = intervals
        self._objecting = objecting
        self._telling = telling
        self._asked: Situation | None = None
        self._news = asyncio.Event()  # something else is asked than before
        self._leaving: dict[str, str] = {}  # uids of pods that leave, by name
        self._meant: dict[str, str] = {}  # uids by name as they were first heard since the look
        self._leaving_since = 0.0
        self._backoff = Backoff(intervals.again, intervals.longest)
        self._next_attempt = 0.0
        self._refused: tuple[Problem, ...] = ()
        self.problems: tuple[Problem, ...] = ()
        self.needs_cordon = False

    def look(self, judgement: Judgement, observed: ObservedNode) -> None:
        """The GPUs are like this now, and nothing speaks against what is planned for them."""
        plan = judgement.plan
        before, self._asked = self._asked, None
        self._meant.clear()
        if plan is not None and asks_for_eviction(plan, judgement.desired):
            self._asked = Situation(plan, judgement, observed)
        if _desired(before) != _desired(self._asked):
            self._news.set()

    def forget(self) -> None:
        """Nobody is to be evicted now."""
        if self._asked is not None:
            self._asked = None
            self._news.set()

    async def run(self) -> NoReturn:
        """Evict and wait until cancelled."""
        while True:
            self._news.clear()
            if self._asked is None:
                self._begin_anew()
                await self._news.wait()
                self._begin_anew()
                continue
            pause = await self._turn(self._asked)
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
        if self._asked is None:
            self._leaving.clear()
            self._tell((), cordon=False)

    # --- one turn -------------------------------------------------------------------------------

    async def _turn(self, asked: Situation) -> float:
        """Ask those to leave who have to; the seconds until the next turn."""
        try:
            pods = await self._pods.list_now(within=self._intervals.answer)
            found = evictions(
                asked.plan, asked.judgement.desired, self._policy, NodeFacts(pods=pods)
            )
            return await self._work_off(asked, found, pods)
        except ClusterFault as fault:
            self._tell((_not_asked(fault),), cordon=self.needs_cordon)
            return self._backoff.next()

    async def _work_off(
        self, asked: Situation, found: Evictions, pods: tuple[PodFact, ...]
    ) -> float:
        there = {str(pod): pod.uid for pod in pods}
        were_leaving = bool(self._leaving)
        self._leaving |= {name: there[name] for name in found.leaving}
        self._leaving = {n: uid for n, uid in self._leaving.items() if there.get(n) == uid}
        wanted = [p for p in found.wanted if self._is_meant(p, there)]
        if wanted and asyncio.get_running_loop().time() >= self._next_attempt:
            after = {gpu.before.key: gpu for gpu in found.then}
            gpus = tuple(after.get(gpu.before.key, gpu) for gpu in asked.plan.gpus)
            objections = await self._objecting(replace(asked.plan, gpus=gpus))
            if objections:
                self._tell(objections, cordon=False)
                return self._backoff.next()
            await self._evict(wanted, there)
        elif not wanted:
            self._refused = ()
        self._tell((*found.problems, *self._refused), cordon=bool(self._leaving) or were_leaving)
        return self._until_next(found, were_leaving=were_leaving)

    def _is_meant(self, pod: EvictPod, there: dict[str, str]) -> bool:
        """Whether it is here and is yet to be asked. One that came under its name since the GPUs
        were looked at (a StatefulSet's, say) may have been given nothing.
        """
        uid = there.get(_name(pod))
        if uid is None or self._meant.setdefault(_name(pod), uid) != uid:
            return False
        return _name(pod) not in self._leaving

    def _until_next(self, found: Evictions, *, were_leaving: bool) -> float:
        now = asyncio.get_running_loop().time()
        if self._leaving:
            if not were_leaving:
                self._leaving_since = now
            took = now - self._leaving_since
            return min(max(self._intervals.first, took / 10), self._intervals.longest)
        if were_leaving or (found.wanted and not self._refused):
            # What is asked for was seen before they had gone.
            self._telling.wake("pods that were in the way have gone")
        return self._backoff.next()

    async def _evict(self, wanted: Sequence[EvictPod], there: dict[str, str]) -> None:
        self.needs_cordon = True  # from now on nobody else of the agent ends it
        await self._node.patch_all(
            lambda node: make_room(Evictions(tuple(wanted)), node, self._rules),
            within=self._intervals.answer,
        )
        refused = []
        for pod in wanted:
            try:
                await self._access.evict_pod(pod.namespace, pod.name, uid=there[_name(pod)])
            except (ObjectMissing, WriteConflict):
                continue  # it has gone, whoever has its name now
            except ClusterFault as fault:
                refused.append(_refusal(pod, fault))
                continue
            self._leaving[_name(pod)] = there[_name(pod)]
            log.info("a pod is evicted", pod=_name(pod), reason=pod.reason)
            self._telling.evicted(pod)
        self._refused = tuple(refused)
        if refused:
            pause = self._backoff.after(self._backoff.failures + 1)
            self._next_attempt = asyncio.get_running_loop().time() + pause

    def _tell(self, problems: tuple[Problem, ...], *, cordon: bool) -> None:
        is_news, ends = problems != self.problems, self.needs_cordon and not cordon
        self.problems, self.needs_cordon = problems, cordon
        if ends:
            self._telling.uncordon()
        if is_news:
            self._telling.wake("what is known of evictions has changed")


def _name(pod: EvictPod) -> str:
    return f"{pod.namespace}/{pod.name}"


def _desired(asked: Situation | None) -> object:
    return asked and asked.judgement.desired


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
    """Looks into what `look` was told last, while `run` runs.

    `again` are the seconds between two questions, which double up to `longest` while nothing
    comes of them; `answer` is how long the API server may take.
    """

    def __init__(
        self,
        pods: NodePods,
        *,
        suspect: KubeletSuspect | None,
        wake: Callable[[str], None],
        again: float,
        longest: float,
        answer: float,
    ) -> None:
        self._pods = pods
        self._suspect = suspect
        self._wake = wake
        self._answer = answer
        self._asked: frozenset[PodName] = frozenset()
        self._backoff = Backoff(again, longest)
        self._due = asyncio.Event()

    def look(self, judgement: Judgement) -> None:
        """The GPUs are like this now."""
        if self._suspect is None:
            return
        before, self._asked = self._asked, _listed_only(judgement)
        if before != self._asked:
            self._backoff.reset()
        if self._asked:
            self._due.set()

    async def run(self) -> NoReturn:
        """Ask until cancelled; each look asks once at most."""
        while True:
            await self._due.wait()
            self._due.clear()
            over = await self._pods.ended(self._asked, within=self._answer)
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
