"""The change hooks of a node in a cluster: objections, preparation, eviction and restore.

In steady state the API server is asked nothing. What is under way is recorded on the Node
itself, so that the next agent puts back what this one could not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

import structlog

from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.drain.changes import leaving_pods, preparations
from nodeagent.cluster.drain.evictor import Evictor
from nodeagent.cluster.drain.node import DrainedNode, DrainIntervals, api_problem
from nodeagent.cluster.drain.other_managers import OtherManager
from nodeagent.cluster.drain.pods import Pod, PodSelector
from nodeagent.cluster.drain.restore import Restore
from nodeagent.errors import UsageError
from nodeagent.pacing import Backoff
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import NodePlan, Policy, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.active_plan import PlanEvaluation
from nodeagent.reconcile.change_hooks import ChangeHooks
from nodeagent.reconcile.event_log import EventType

if TYPE_CHECKING:
    from nodeagent.cluster.client.access import ClusterAccess
    from nodeagent.settings import KubernetesSettings

log = structlog.get_logger(__name__)


class ClusterHooks(ChangeHooks):
    """The hooks of one node of one cluster.

    `source` is the agent's plan source. `wake` requests another round of the loop, with the reason;
    `report` adds to the event log. `restored` publishes that all that was done around a change
    is put back. Raises UsageError for wrong settings.
    """

    def __init__(
        self,
        access: ClusterAccess,
        node: str,
        *,
        settings: KubernetesSettings,
        source: str,
        policy: Policy,
        wake: Callable[[str], None],
        report: Callable[[EventType, str], object],
        intervals: DrainIntervals = DrainIntervals(),  # noqa: B008 - a frozen value
    ) -> None:
        check_settings(settings)
        self._node = DrainedNode(access, node, settings, source, intervals, wake, report)
        self._restore = Restore(self._node)
        self._preparation = Preparation(self._node, self._restore)
        self._evictor = Evictor(self._node, self._restore, policy)
        self.restored = self._restore.restored
        self._desired: DesiredNode | None = None  # of the last round

    # --- for the loop -----------------------------------------------------------------------------

    async def objections(
        self, evaluation: PlanEvaluation, todo: NodePlan, observed: ObservedNode
    ) -> tuple[Problem, ...]:
        """Other managers of this node's GPUs.

        While the plan needs nothing, another manager is reported once and objects to nothing.
        """
        plan, self._desired = evaluation.plan, evaluation.desired
        if plan is None:
            return ()
        needs_work = plan.verdict is not Verdict.IN_SYNC
        await self._node.find_others(working=bool(todo.gpus), unfinished=needs_work)
        return self._node.objections() if needs_work else ()

    async def prepare(self, todo: NodePlan) -> tuple[Problem, ...]:
        """Notify the cluster's other GPU clients, as the settings say, and wait for them to go."""
        self._restore.begin_work(changes_devices=todo.changes_devices)
        return await self._preparation.prepare(self._desired) if todo.changes_devices else ()

    def after_round(
        self,
        evaluation: PlanEvaluation,
        observed: ObservedNode,
        postponed: frozenset[str] = frozenset(),
        looked_at: datetime | None = None,
    ) -> None:
        """Have put back what was done, await the offer, evict for what is blocked: in `run`."""
        if self._node.refusing:
            self._evictor.forget()
        else:
            self._evictor.observe(evaluation, looked_at, postponed)
        self._restore.end_round(evaluation, observed)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What evictions meet, what is not put back, and what the node offers wrongly."""
        return (*self._evictor.problems, *self._restore.problems)

    @property
    def leaves_answer(self) -> bool:
        """Whether the plan source's answer on the Node is left to another manager."""
        return self._node.leaves_answer

    @property
    def is_unfinished(self) -> bool:
        """Whether something that was done around a change is not yet put back."""
        return self._restore.is_due

    # --- events -----------------------------------------------------------------------------------

    def observe(self, view: NodeView | None) -> None:
        """The Node is like this now; None: the cluster has none."""
        self._node.view = view
        if self._node.refusing and not self._node.objections():
            self._node.wake("no other manager seems to split the GPUs any more")
        self._restore.observe(view)

    def server_answers(self) -> None:
        """What failed without the API server is tried at once."""
        self._preparation.server_answers()

    # --- its life ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow up what rounds leave, until cancelled."""
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(self._restore.run(), name="put back around a change")
                parts.create_task(self._evictor.run(), name="evict pods")
        finally:
            self._preparation.forget()

    async def shut_down(self, *, within: float) -> None:
        """The agent stops: put back now what can be in so many seconds; the rest is for the next.

        Call it when `run` has ended and no round will come.
        """
        await self._restore.shut_down(within=within)


def check_settings(settings: KubernetesSettings) -> None:
    """Raise UsageError for a selector of pods or a name of another manager that is none."""
    try:
        for labels in settings.plugin_pods:
            PodSelector.of(labels)
    except ValueError as error:
        raise UsageError(f"kubernetes.plugin_pods: {error}") from error
    try:
        for name in settings.tolerate:
            OtherManager(name)
    except ValueError as error:
        raise UsageError(
            f"kubernetes.tolerate: {error}", remedy=f"accepted: {', '.join(OtherManager)}"
        ) from error


# --- before a change ------------------------------------------------------------------------------


class Preparation:
    """Prepares the node for a change: notifies the cluster's other GPU clients, and waits for their
    pods to go. What is still to do is read from the Node each time, so it does not matter where an
    earlier attempt, or an earlier agent, has ended.

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
        async with self._restore.changing_node():
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
            return (api_problem(what, fault),)
        if self._node.settings.clients != "pauseLabels":
            return ()
        return await self._pods_gone(leaving_pods(node.labels))

    async def _pods_gone(self, selectors: Sequence[PodSelector]) -> tuple[Problem, ...]:
        loop, seconds = asyncio.get_running_loop(), self._node.settings.pods_deadline
        deadline = loop.time() + seconds
        backoff = Backoff(*self._node.intervals.leaving_pods)
        while selectors:
            pods, within = None, max(deadline - loop.time(), 1.0)
            with suppress(ClusterFault):  # which the node keeps
                pods = await self._node.list_pods(within=min(self._node.intervals.answer, within))
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
    return Problem.of(Code.IN_USE, "podsStay", who=who, seconds=f"{seconds:g}", look=look)
