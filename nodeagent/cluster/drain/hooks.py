"""The change hooks of a node in a cluster: objections, preparation, eviction and restore.

In steady state the API server is asked nothing. What was begun is recorded on the Node itself, so
that the next agent puts back what this one could not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.drain.evictor import Evictor
from nodeagent.cluster.drain.finished_pods import FinishedPods
from nodeagent.cluster.drain.node import DrainedNode, DrainIntervals
from nodeagent.cluster.drain.owners import OtherManager
from nodeagent.cluster.drain.plugin_outlook import PluginOutlook
from nodeagent.cluster.drain.pods import PodSelector
from nodeagent.cluster.drain.preparation import Preparation
from nodeagent.cluster.drain.restore import Restore
from nodeagent.errors import UsageError
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import NodePlan, Policy, Verdict
from nodeagent.plan.problems import Problem
from nodeagent.reconcile.active_plan import Judgement
from nodeagent.reconcile.change_hooks import ChangeHooks
from nodeagent.reconcile.event_log import EventType

if TYPE_CHECKING:
    from nodeagent.cluster.client.access import ClusterAccess
    from nodeagent.settings import KubernetesSettings


class ClusterHooks(ChangeHooks):
    """The hooks of one node of one cluster.

    `source` is the agent's plan source. `wake` requests another round of the loop, with the reason;
    `report` adds to the event log. Each of `on_restored` is called when all that was done around a
    change is put back. `finished_pods` is for the reader of the kubelet. Raises UsageError for
    wrong settings.
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
        self._outlook = PluginOutlook(settings.plugin_configs)
        self._restore = Restore(self._node, self._outlook)
        self._preparation = Preparation(self._node, self._restore)
        self._evictor = Evictor(self._node, self._outlook, self._restore, policy)
        self.finished_pods = FinishedPods(self._node)
        self.on_restored = self._restore.on_restored
        self._desired: DesiredNode | None = None  # of the last round

    # --- for the loop -----------------------------------------------------------------------------

    async def objections(
        self, judgement: Judgement, todo: NodePlan, observed: ObservedNode
    ) -> tuple[Problem, ...]:
        """Other managers of this node's GPUs, and whether the device plugin could serve the result.

        While the plan needs nothing, another manager is reported once and objects to nothing.
        """
        plan, self._desired = judgement.plan, judgement.desired
        if plan is None:
            return ()
        needs_work = plan.verdict is not Verdict.IN_SYNC
        await self._node.find_others(working=bool(todo.gpus), unfinished=needs_work)
        found = self._node.objections() if needs_work else ()
        if not found and todo.changes_devices:
            labels = self._node.known.labels
            found = await self._outlook.objections(judgement, todo, observed, labels)
        return found

    async def prepare(self, todo: NodePlan) -> tuple[Problem, ...]:
        """Notify the cluster's other GPU clients, as the settings say, and wait for them to go."""
        self._restore.begin_work(changes_devices=todo.changes_devices)
        return await self._preparation.prepare(self._desired) if todo.changes_devices else ()

    def settle(
        self, judgement: Judgement, observed: ObservedNode, left: frozenset[str] = frozenset()
    ) -> None:
        """Have put back what was done, await the offer, evict for what is blocked: in `run`."""
        if self._node.refusing:
            self._evictor.forget()
        else:
            self._evictor.observe(judgement, observed, left)
        self.finished_pods.observe(judgement)
        self._restore.end_round(judgement, observed)

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
        if view is not None:
            self._outlook.observe(view.labels)
        if self._node.refusing and not self._node.objections():
            self._node.wake("no other manager seems to split the GPUs any more")
        self._restore.observe(view)

    def server_answers(self) -> None:
        """What failed without the API server is tried at once."""
        self._preparation.server_answers()

    def use_source(self, source: str) -> None:
        """The agent's plan source is another one now."""
        self._node.source = source

    # --- its life ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow up what rounds leave, until cancelled."""
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(self._restore.run(), name="put back around a change")
                parts.create_task(self._evictor.run(), name="evict pods")
                parts.create_task(self.finished_pods.run(), name="look for finished pods")
        finally:
            self._preparation.forget()

    async def shut_down(self, *, within: float) -> None:
        """The agent stops: put back now what can be in so many seconds; the rest is for the next.

        Call it when `run` has ended and no round will come.
        """
        self._evictor.forget()
        await self._restore.shut_down(within=within)


def check_settings(settings: KubernetesSettings) -> None:
    """Raises UsageError where pods or other managers are named as none is."""
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
