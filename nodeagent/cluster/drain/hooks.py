"""The change hooks of a node in a cluster: objections, preparation, eviction and restore.

In steady state the API server is asked nothing. What was begun is recorded on the Node itself, so
that the next agent puts back what this one could not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.drain.evictor import (
    EvictionIntervals,
    Evictor,
    FinishedPods,
    KubeletSuspect,
)
from nodeagent.cluster.drain.executor import DrainExecutor, ExecutorIntervals, PreparationRetries
from nodeagent.cluster.drain.node_access import NodePods, OwnNode, facts_of
from nodeagent.cluster.drain.owners import Owner, claims, owned_by_others
from nodeagent.cluster.drain.plan import Rules
from nodeagent.cluster.drain.plugin_outlook import PluginOutlook
from nodeagent.cluster.drain.restore import ReportEvent, Restore, configuration_of
from nodeagent.cluster.drain.steps import ClientCare, EvictPod, PodSelector
from nodeagent.cluster.kubelet.allocations import PodName
from nodeagent.errors import UsageError
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import NodePlan, Policy, Verdict
from nodeagent.plan.problems import Problem
from nodeagent.reconcile.active_plan import Judgement
from nodeagent.reconcile.event_log import EventType

if TYPE_CHECKING:
    from nodeagent.cluster.client.access import ClusterAccess
    from nodeagent.settings import KubernetesSettings

log = structlog.get_logger(__name__)


class OtherOwners:
    """Knows the node by its view and its pods.

    The pods are listed at first, while work is due, and while another manager objects: within
    `within` seconds, and once in `unless_asked` seconds. Without an answer the last list counts,
    else the node's labels.
    """

    def __init__(
        self,
        node: OwnNode,
        pods: NodePods,
        *,
        tolerated: Collection[Owner],
        source: str,
        report: ReportEvent,
        within: float,
        unless_asked: float,
    ) -> None:
        self._node = node
        self._pods = pods
        self._tolerated = tolerated
        self._report_event = report
        self._within = within
        self._unless_asked = unless_asked
        self._told: tuple[Problem, ...] = ()
        self._unsure = False
        self.source = source
        self.refusing = False  # another manager was found when there was work

    async def look(
        self, view: NodeView | None, *, working: bool, unfinished: bool
    ) -> NodeView | None:
        """Find out what has to be known now; the Node as far as it is known.

        `working`: GPUs are about to be changed; `unfinished`: some are not as planned.
        """
        if self._pods.known is None or working or self.refusing:
            asked = await self._pods.refresh(within=self._within, unless_asked=self._unless_asked)
            if asked and view is None:
                view = await self._read()
        found = self.objections(view)
        self.refusing = unfinished and bool(found)
        self._say(found, working=working)
        return view

    def objections(self, view: NodeView | None) -> tuple[Problem, ...]:
        """Everybody who is here by what is known now, and not tolerated."""
        node = facts_of(view, self._pods.known)
        return owned_by_others(node, source=self.source, tolerated=self._tolerated)

    def may_have_paused(self, view: NodeView | None) -> bool:
        """Whether a manager is here, tolerated or not, that pauses the same labels for its work."""
        here = claims(facts_of(view, self._pods.known), source=self.source)
        return any(claim.owner is Owner.MIG_MANAGER for claim in here)

    async def _read(self) -> NodeView | None:
        """Before the Node has been seen for the first time."""
        try:
            async with asyncio.timeout(self._within):
                return await self._node.read()
        except (ClusterFault, TimeoutError) as error:
            log.debug("the Node cannot be read", error=str(error))
            return None

    def _say(self, found: tuple[Problem, ...], *, working: bool) -> None:
        if found and found != self._told and not self.refusing:
            for problem in found:
                log.warning("another manager splits the GPUs", who=problem.message)
                self._report_event(EventType.OTHER_OWNER, f"{problem.message} ({problem.remedy})")
        self._told = found
        fault = self._pods.fault
        if fault is None:
            self._unsure = False
        elif working and not self._unsure:
            self._unsure = True
            by = "by the last list" if self._pods.known is not None else "by its labels alone"
            message = f"whether another manager splits the GPUs is judged {by}: {fault.message}"
            log.warning("the pods of the node are not known", error=fault.message)
            self._report_event(EventType.UNCHECKED, message)


@dataclass(frozen=True, slots=True)
class DrainIntervals:
    """Times in seconds. `ask`: how long the loop waits for the list of pods, `asked`: how old
    that may be; `retry`: between two attempts to put back, from short to long; `again`:
    between two attempts at a change that could not be prepared.
    """

    ask: float = 3.0
    asked: float = 5.0
    retry: tuple[float, float] = (1.0, 60.0)
    again: tuple[float, float] = (10.0, 600.0)
    executor: ExecutorIntervals = field(default_factory=ExecutorIntervals)
    eviction: EvictionIntervals = field(default_factory=EvictionIntervals)


class ClusterHooks:
    """The `ChangeHooks` of one node of one cluster.

    `put_back` is called when all that was done around a change is put back. `source` is the agent's
    plan source. `wake` requests another round of the loop, with the reason; `kubelet_suspect` gets
    pods that the kubelet lists although they have ended. Raises UsageError for wrong settings.
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
        report: ReportEvent = lambda _kind, _message: None,
        kubelet_suspect: KubeletSuspect | None = None,
        intervals: DrainIntervals = DrainIntervals(),
    ) -> None:
        self.put_back: Callable[[], None] = lambda: None
        self._rules = rules_of(settings)
        self._wake = wake
        self._report_event = report
        self._intervals = intervals
        self._pods = NodePods(access, node)
        own_node = OwnNode(access, node)
        self._owners = OtherOwners(
            own_node,
            self._pods,
            tolerated=tolerated_in(settings),
            source=source,
            report=report,
            within=intervals.ask,
            unless_asked=intervals.asked,
        )
        self._outlook = PluginOutlook(settings.plugin_configs)
        self._executor = DrainExecutor(
            access,
            own_node,
            self._pods,
            rules=self._rules,
            pods_deadline=settings.pods_deadline,
            intervals=intervals.executor,
        )
        self._restore = Restore(
            self._executor,
            self._outlook,
            rules=self._rules,
            needs_cordon=lambda: self._evictor.needs_cordon,
            may_have_paused=self._owners.may_have_paused,
            deadline=settings.allocatable_deadline,
            retry=intervals.retry,
            wake=wake,
            done=lambda: self.put_back(),  # noqa: PLW0108 - it is set later
            report=report,
        )
        self._evictor = Evictor(
            access,
            own_node,
            self._pods,
            rules=self._rules,
            policy=policy,
            intervals=intervals.eviction,
            objecting=self._object_to_evictions,
            wake=wake,
            evicted=self._evicted,
            uncordon=self._restore.follow_up,
        )
        self._finished = FinishedPods(
            self._pods,
            suspect=kubelet_suspect,
            wake=wake,
            intervals=intervals.eviction,
        )
        self._attempts = PreparationRetries(again=intervals.again, wake=wake)
        self._view: NodeView | None = None
        self._desired: DesiredNode | None = None  # when the loop asked last

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
        view = await self._owners.look(self._view, working=bool(todo.gpus), unfinished=needs_work)
        found = self._owners.objections(view) if needs_work else ()
        if not found and todo.changes_devices:
            found = await self._outlook.objections(
                plan,
                todo,
                observed,
                facts_of(view).labels,
                wanted=configuration_of(judgement),
            )
        return found

    async def prepare(self, todo: NodePlan) -> tuple[Problem, ...]:
        """Notify the cluster's other GPU clients, as the settings say, and wait for them to go."""
        changes = todo.changes_devices
        self._restore.work_begins(changes_devices=changes)
        if not changes or (self._rules.care is ClientCare.NOTHING and not self._rules.cordon):
            return ()
        asked = self._desired
        put_off = self._attempts.put_off(asked)
        if put_off:
            return put_off
        async with self._restore.touching():
            problems = await self._executor.prepare(todo)
        self._attempts.ended(asked, problems)
        return problems

    def settle(self, judgement: Judgement, observed: ObservedNode) -> None:
        """Have put back what was done, await the offer, evict for what is blocked: in `run`."""
        if self._owners.refusing:
            self._evictor.forget()
        else:
            self._evictor.look(judgement)
        self._finished.look(judgement)
        self._restore.settle(judgement, observed)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What evictions meet, what is not put back, and what the node offers wrongly."""
        return (*self._evictor.problems, *self._restore.problems)

    @property
    def refuses(self) -> bool:
        """Whether another manager splits this node's GPUs, so that the agent does nothing."""
        return self._owners.refusing

    @property
    def is_unfinished(self) -> bool:
        """Whether something that was done around a change is not yet put back."""
        return self._restore.is_due

    # --- events -----------------------------------------------------------------------------------

    def saw(self, view: NodeView | None) -> None:
        """The Node is like this now; None: the cluster has none."""
        self._view = view
        if view is not None:
            self._outlook.saw(view.labels)
        if self._owners.refusing and not self._owners.objections(view):
            self._wake("no other manager seems to split the GPUs any more")
        self._restore.saw(view)

    def reached(self) -> None:
        """The API server answers again: what failed without it is tried at once."""
        self._attempts.server_answers()

    def follow(self, source: str) -> None:
        """The agent's plan source is another one now."""
        self._owners.source = source

    async def finished(self, pods: Iterable[PodName]) -> frozenset[PodName]:
        """Which of these pods, as the kubelet names them, have ended for sure; asks now."""
        return await self._pods.ended(pods, within=self._intervals.ask)

    # --- its life ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow up what rounds leave, until cancelled."""
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(self._restore.run(), name="put back around a change")
                parts.create_task(self._evictor.run(), name="evict pods")
                parts.create_task(self._finished.run(), name="look for finished pods")
        finally:
            self._attempts.forget()

    async def leave(self, *, within: float) -> None:
        """The agent stops: put back now what can be in so many seconds; the rest is for the next.

        Call it when `run` has ended and no round will come.
        """
        self._evictor.forget()
        self._evictor.needs_cordon = False
        await self._restore.leave(within=within)

    # --- evictions --------------------------------------------------------------------------------

    async def _object_to_evictions(self, plan: NodePlan) -> tuple[Problem, ...]:
        owned = self._owners.objections(self._view)
        if owned or self._restore.seen is None:
            return owned
        judgement, observed = self._restore.seen
        labels = facts_of(self._view).labels
        return await self._outlook.objections(
            plan, plan, observed, labels, wanted=configuration_of(judgement)
        )

    def _evicted(self, pod: EvictPod) -> None:
        self._report_event(EventType.EVICTED, f"pod {pod} is evicted: {pod.reason}")


def rules_of(settings: KubernetesSettings) -> Rules:
    """The rules of a drain by the settings; raises UsageError."""
    try:
        plugin_pods = tuple(map(PodSelector.of, settings.plugin_pods))
    except ValueError as error:
        raise UsageError(f"kubernetes.plugin_pods: {error}") from error
    return Rules(ClientCare(settings.clients), settings.cordon, plugin_pods)


def tolerated_in(settings: KubernetesSettings) -> frozenset[Owner]:
    """Beside whom the agent works all the same; raises UsageError."""
    try:
        return frozenset(map(Owner, settings.tolerate))
    except ValueError as error:
        raise UsageError(
            f"kubernetes.tolerate: {error}", remedy=f"accepted: {', '.join(Owner)}"
        ) from error
