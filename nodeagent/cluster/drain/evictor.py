"""`whenInUse: evict`: evicts the pods that hold what must go, and waits for them.

By the Eviction API, which keeps to disruption budgets; what it refuses is reported and requested
again after a while. Nothing is killed or deleted. While pods leave, the node stays cordoned if that
is wanted; once all that could be done is refused, it does not.
"""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import NoReturn

from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.drain.changes import cordoning
from nodeagent.cluster.drain.eviction import Evictions, asks_for_eviction, evictions
from nodeagent.cluster.drain.node import DrainedNode, api_problem
from nodeagent.cluster.drain.restore import Restore
from nodeagent.pacing import Backoff
from nodeagent.plan.plan import NodePlan, Policy
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.users import PodName
from nodeagent.reconcile.active_plan import PlanEvaluation
from nodeagent.reconcile.event_log import EventType
from nodeagent.structs import replace
from nodeagent.waiting import ends_within


class Evictor:
    """Evicts what the last observation asks for while `run` runs. Not beside another manager."""

    def __init__(self, node: DrainedNode, restore: Restore, policy: Policy) -> None:
        self._node = node
        self._restore = restore
        self._policy = policy
        self._goal: tuple[PlanEvaluation, NodePlan] | None = None
        self._another_goal = asyncio.Event()  # another desired state than before
        self._terminating: dict[PodName, str] = {}  # with the uid of each
        self._looked_at: datetime | None = None  # when the GPUs were observed last
        self._blocking: dict[PodName, str] = {}  # uids as first listed since that observation
        self._terminating_since = 0.0
        self._backoff = Backoff(*node.intervals.evict)
        self._next_attempt = 0.0
        self._refused: tuple[Problem, ...] = ()
        self.problems: tuple[Problem, ...] = ()

    def observe(
        self,
        evaluation: PlanEvaluation,
        looked_at: datetime | None,
        left: frozenset[str] = frozenset(),
    ) -> None:
        """This is planned for the GPUs as they were observed then, just now where it is None, and
        nothing speaks against it. No pod goes for a GPU that is `left`: nothing is done there now.
        """
        before, self._goal = self._goal, None
        # Without a later look nothing more is known of the users.
        if looked_at is None or looked_at != self._looked_at:
            self._looked_at = looked_at
            self._blocking.clear()
        plan = evaluation.plan
        if plan is not None:
            gpus = tuple(gpu for gpu in plan.gpus if gpu.before.uuid not in left)
            plan = replace(plan, gpus=gpus)
            if asks_for_eviction(plan, evaluation.desired):
                self._goal = (evaluation, plan)
        if before is None and self._goal is not None:
            # Pods may leave that an earlier agent has evicted; the first attempt finds out.
            self._restore.hold_cordon(True)
        if (before and before[0].desired) != (self._goal and evaluation.desired):
            self._another_goal.set()

    def forget(self) -> None:
        if self._goal is not None:
            self._goal = None
            self._another_goal.set()

    async def run(self) -> NoReturn:
        while True:
            self._another_goal.clear()
            pause = await self._attempt(*self._goal) if self._goal else None
            if pause is None:
                self._start_over()
            # Observations of the same goal do not make it shorter: they may be many.
            if await ends_within(pause, self._another_goal.wait()):
                self._start_over()

    def _start_over(self) -> None:
        self._backoff.reset()
        self._next_attempt, self._refused = 0.0, ()
        if self._goal is None:
            self._terminating.clear()
            self._report((), cordon=False)

    # --- one attempt ------------------------------------------------------------------------------

    async def _attempt(self, evaluation: PlanEvaluation, plan: NodePlan) -> float:
        """Evict those that have to go; returns the seconds until the next attempt."""
        try:
            pods = await self._node.list_pods(within=self._node.intervals.answer)
            found = evictions(plan, evaluation.desired, self._policy, pods)
            here = {pod.key: pod.uid for pod in pods}
            were_terminating = bool(self._terminating)
            self._terminating |= {pod: here[pod] for pod in found.terminating}
            self._terminating = {
                p: uid for p, uid in self._terminating.items() if here.get(p) == uid
            }
            wanted = [pod for pod in found.wanted if self._is_blocking(pod, here)]
            if wanted and asyncio.get_running_loop().time() >= self._next_attempt:
                if objections := self._node.objections():
                    self._report(objections, cordon=False)
                    return self._backoff.next()
                await self._evict({pod: found.wanted[pod] for pod in wanted}, here)
            elif not wanted:
                self._refused = ()
            problems = (*found.problems, *self._refused)
            self._report(problems, cordon=bool(self._terminating) or were_terminating)
            return self._until_next(found, were_terminating=were_terminating)
        except faults.ClusterFault as fault:
            what = "no pod is evicted, because the API server does not answer"
            self._report((api_problem(what, fault),), cordon=self._restore.holds_cordon)
            return self._backoff.next()

    def _is_blocking(self, pod: PodName, here: Mapping[PodName, str]) -> bool:
        """Whether the pod is here and not evicted yet. One that came under its name since the GPUs
        were observed (a StatefulSet's, say) may have been given nothing.
        """
        uid = here.get(pod)
        if uid is None or self._blocking.setdefault(pod, uid) != uid:
            return False
        return pod not in self._terminating

    def _until_next(self, found: Evictions, *, were_terminating: bool) -> float:
        now = asyncio.get_running_loop().time()
        if self._terminating:
            if not were_terminating:
                self._terminating_since = now
            look = max(self._node.intervals.first_look, (now - self._terminating_since) / 10)
            return min(look, self._node.intervals.evict[1])
        if were_terminating or (found.wanted and not self._refused):
            # The GPUs were observed before the pods had gone.
            self._node.wake("pods that were in the way have gone")
        return self._backoff.next()

    async def _evict(self, wanted: Mapping[PodName, str], here: Mapping[PodName, str]) -> None:
        self._restore.hold_cordon(True)
        await self._node.patch_all(
            lambda node: cordoning(node, self._node.settings), within=self._node.intervals.answer
        )
        refused = []
        for pod, reason in wanted.items():
            if self._another_goal.is_set():
                break  # nothing asks for it any more
            try:
                request = requests.evict_pod(pod.namespace, pod.name, uid=here[pod])
                await self._node.access.send(request)
            except (faults.ObjectMissing, faults.WriteConflict):
                continue  # it has gone, whatever has its name now
            except faults.ClusterFault as fault:
                refused.append(_refusal(pod, reason, fault))
                continue
            self._terminating[pod] = here[pod]
            self._node.report(EventType.EVICTED, f"pod {pod} is evicted: {reason}")
        self._refused = tuple(refused)
        if refused:
            pause = self._backoff.after(self._backoff.failures + 1)
            self._next_attempt = asyncio.get_running_loop().time() + pause

    def _report(self, problems: tuple[Problem, ...], *, cordon: bool) -> None:
        changed, self.problems = problems != self.problems, problems
        self._restore.hold_cordon(cordon)
        if changed:
            self._node.wake("what is known of evictions has changed")


def _refusal(pod: PodName, reason: str, fault: faults.ClusterFault) -> Problem:
    case = "notEvicted"
    if isinstance(fault, faults.DisruptionRefused):
        case = "budget"
    elif isinstance(fault, faults.NotAllowed):
        case = "denied" if "denied" in fault.message else "noRight"  # by a policy, or by no role
    return Problem.of(Code.IN_USE, case, what=reason, why=fault.message, pod=pod)
