"""The cluster around the node, as the loop meets it: what speaks against a change, what is done
before it and put back after it.

Asked for is only what has to be known: in steady state nothing is. What was begun stands on the
Node itself, so that the next agent puts back what this one could not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodeagent.cluster.drain.change import Rules
from nodeagent.cluster.drain.evictor import Evicting, EvictionPace, Telling
from nodeagent.cluster.drain.executor import CarryingOut, CarryingPace
from nodeagent.cluster.drain.finished_pods import FinishedPods, KubeletSuspect
from nodeagent.cluster.drain.other_owners import OtherOwners, Tell
from nodeagent.cluster.drain.own_node import OwnNode, facts_of
from nodeagent.cluster.drain.owners import Owner
from nodeagent.cluster.drain.plugin_outlook import PluginOutlook
from nodeagent.cluster.drain.pods_of_node import AnyName, PodsOfNode
from nodeagent.cluster.drain.preparations import Preparations
from nodeagent.cluster.drain.restore import PuttingBack, Stays, configuration_of
from nodeagent.cluster.drain.steps import (
    ClientCare,
    EvictPod,
    PodSelector,
)
from nodeagent.errors import UsageError
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import NodePlan, Policy, Verdict
from nodeagent.plan.problems import Problem
from nodeagent.reconcile.active_plan import Judgement
from nodeagent.reconcile.event_log import EventType

if TYPE_CHECKING:
    from nodeagent.cluster.client.access import ClusterAccess
    from nodeagent.cluster.client.node_view import NodeView
    from nodeagent.settings import KubernetesSettings


@dataclass(frozen=True, slots=True)
class AroundPace:
    """Times in seconds. `ask`: how long the loop waits to hear which pods are here, `asked`: how
    old that may be; `retry`: between two attempts to put back, from short to long; `again`:
    between two attempts at a change that could not be prepared.
    """

    ask: float = 3.0
    asked: float = 5.0
    retry: tuple[float, float] = (1.0, 60.0)
    again: tuple[float, float] = (10.0, 600.0)
    carrying: CarryingPace = field(default_factory=CarryingPace)
    eviction: EvictionPace = field(default_factory=EvictionPace)


class ClusterSurroundings:
    """Fulfils `nodeagent.reconcile.change_hooks.Surroundings` for one node of one cluster.

    `put_back` is called when all that was done around a change is put back. `source` is the agent's
    plan source. `wake` asks the loop for another look and says why;
    `kubelet_suspect` is told of pods that the kubelet lists although they have ended. Raises
    UsageError for settings that name nobody.
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
        tell: Tell = lambda _kind, _message: None,
        kubelet_suspect: KubeletSuspect | None = None,
        pace: AroundPace = AroundPace(),
    ) -> None:
        self.put_back: Callable[[], None] = lambda: None
        self._rules = rules_of(settings)
        self._wake = wake
        self._tell = tell
        self._pace = pace
        self._pods = PodsOfNode(access, node)
        own_node = OwnNode(access, node)
        self._owners = OtherOwners(
            own_node,
            self._pods,
            tolerated=tolerated_in(settings),
            source=source,
            tell=tell,
            within=pace.ask,
            unless_asked=pace.asked,
        )
        self._outlook = PluginOutlook(settings.plugin_configs)
        self._carrying = CarryingOut(
            access,
            own_node,
            self._pods,
            rules=self._rules,
            pods_deadline=settings.pods_deadline,
            pace=pace.carrying,
        )
        self._putting_back = PuttingBack(
            self._carrying,
            self._outlook,
            rules=self._rules,
            stays=Stays(
                cordon=lambda: self._evicting.needs_cordon, labels=self._owners.may_have_paused
            ),
            deadline=settings.allocatable_deadline,
            retry=pace.retry,
            wake=wake,
            done=self._all_is_back,
            tell=tell,
        )
        self._evicting = Evicting(
            access,
            own_node,
            self._pods,
            rules=self._rules,
            policy=policy,
            pace=pace.eviction,
            objecting=self._object_to_evictions,
            telling=Telling(wake, self._evicted, self._putting_back.follow_up),
        )
        self._finished = FinishedPods(
            self._pods,
            suspect=kubelet_suspect,
            wake=wake,
            again=pace.eviction.again,
            longest=pace.eviction.longest,
            answer=pace.eviction.answer,
        )
        self._attempts = Preparations(again=pace.again, wake=wake)
        self._view: NodeView | None = None
        self._desired: DesiredNode | None = None  # when the loop asked last

    # --- what the loop asks ---------------------------------------------------------------------

    async def objections(
        self, judgement: Judgement, todo: NodePlan, observed: ObservedNode
    ) -> tuple[Problem, ...]:
        """Who else splits this node's GPUs, and whether the device plugin could serve them then.

        While the plan needs nothing, somebody else is told of once and stands in nobody's way.
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
        """Tell the cluster's other GPU clients, as the settings say, and wait for them to go."""
        changes = todo.changes_devices
        self._putting_back.work_begins(changes_devices=changes)
        if not changes or (self._rules.care is ClientCare.NOTHING and not self._rules.cordon):
            return ()
        asked = self._desired
        put_off = self._attempts.put_off(asked)
        if put_off:
            return put_off
        async with self._putting_back.touching():
            problems = await self._carrying.prepare(todo)
        self._attempts.ended(asked, problems)
        return problems

    def settle(self, judgement: Judgement, observed: ObservedNode) -> None:
        """Have put back what was done, await the offer, evict for what is blocked: in `run`."""
        if self._owners.refusing:
            self._evicting.forget()
        else:
            self._evicting.look(judgement, observed)
        self._finished.look(judgement)
        self._putting_back.settle(judgement, observed)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What evictions meet, what is not put back, and what the node offers wrongly."""
        return (*self._evicting.problems, *self._putting_back.problems)

    @property
    def refuses(self) -> bool:
        """Whether somebody else splits this node's GPUs, so that the agent does nothing."""
        return self._owners.refusing

    @property
    def is_unfinished(self) -> bool:
        """Whether something that was done around a change is not yet put back."""
        return self._putting_back.is_due

    # --- what others say ------------------------------------------------------------------------

    def saw(self, view: NodeView | None) -> None:
        """The Node is like this now; None: the cluster has none."""
        self._view = view
        if view is not None:
            self._outlook.saw(view.labels)
        if self._owners.refusing and not self._owners.objections(view):
            self._wake("nobody else seems to split the GPUs any more")
        self._putting_back.saw(view)

    def reached(self) -> None:
        """The API server answers again: what it could not be told waits no longer."""
        self._attempts.server_answers()

    def follow(self, source: str) -> None:
        """The agent's plan source is another one now."""
        self._owners.source = source

    async def finished(self, pods: Iterable[AnyName]) -> frozenset[AnyName]:
        """Which of these pods, as the kubelet names them, have ended for sure; asks now."""
        return await self._pods.ended(pods, within=self._pace.ask)

    # --- its life -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow up what rounds leave, until cancelled."""
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(self._putting_back.run(), name="put back around a change")
                parts.create_task(self._evicting.run(), name="evict pods")
                parts.create_task(self._finished.run(), name="look for finished pods")
        finally:
            self._attempts.forget()

    async def leave(self, *, within: float) -> None:
        """The agent stops: put back now what can be in so many seconds; the rest is for the next.

        Call it when `run` has ended and no round will come.
        """
        self._evicting.forget()
        self._evicting.needs_cordon = False
        await self._putting_back.leave(within=within)

    # --- evictions ------------------------------------------------------------------------------

    async def _object_to_evictions(self, plan: NodePlan) -> tuple[Problem, ...]:
        owned = self._owners.objections(self._view)
        if owned or self._putting_back.seen is None:
            return owned
        judgement, observed = self._putting_back.seen
        labels = facts_of(self._view).labels
        return await self._outlook.objections(
            plan, plan, observed, labels, wanted=configuration_of(judgement)
        )

    def _all_is_back(self) -> None:
        self.put_back()

    def _evicted(self, pod: EvictPod) -> None:
        self._tell(EventType.EVICTED, f"pod {pod.namespace}/{pod.name} is evicted: {pod.reason}")


def rules_of(settings: KubernetesSettings) -> Rules:
    """What is told to whom; raises UsageError."""
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
