"""Follows the agent's Node for what a plan source asks for there, and publishes the state on it:
the status, the facts for schedulers, the conditions, the source's own answer, and Events.

Whatever the API server does, the work on the GPUs goes on, and the newest state is written when it
can be.
"""

import asyncio
import platform
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, NoReturn

import structlog

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.cluster.client.node_view import NodeView, Wanted
from nodeagent.cluster.drain.hooks import ClusterHooks
from nodeagent.cluster.events import EventIntervals, EventPublisher
from nodeagent.cluster.keeper import WriteIntervals
from nodeagent.cluster.node import KeptNode
from nodeagent.cluster.node_status import facts_of, node_event, shown_facts
from nodeagent.cluster.plan_sources.node_source import NodeSource
from nodeagent.cluster.reflector import WatchIntervals
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.event_log import EventLog, EventType
from nodeagent.reconcile.plan_update import PlanUpdate
from nodeagent.signals import Signal
from nodeagent.structs import Struct, field, replace
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.shapes import Cluster
from nodeagent.views.status_annotation import StatusAnnotation
from nodeagent.views.text import time_json
from nodeagent.waiting import ends_within

log = structlog.get_logger(__name__)

_NAME_IT: Final = "set node_name to one of: kubectl get nodes"


class PublisherIntervals(Struct, frozen=True):
    """Times in seconds. `patience`: shorter work is reported only at its end, so that a quick
    change is one write. `first_answer`: how long the API server is awaited at the start
    before the recorded plan counts.
    """

    patience: float = 1.0
    first_answer: float = 3.0
    follow: WatchIntervals = field(default_factory=WatchIntervals)
    write: WriteIntervals = field(default_factory=WriteIntervals)
    events: EventIntervals = field(default_factory=EventIntervals)


_INTERVALS: Final = PublisherIntervals()


class NodePublisher:
    """Follows and writes the Node `node` while `run` runs.

    `labels`: facts for schedulers are labels too; `taints`: an unhealthy GPU taints the Node. `now`
    is the time of day in UTC, used in what is published; all waiting goes by the loop's own clock.
    """

    def __init__(
        self,
        access: ClusterAccess,
        node: str,
        hooks: ClusterHooks,
        *,
        events: EventLog,
        labels: bool = False,
        taints: bool = False,
        intervals: PublisherIntervals = _INTERVALS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._access = access
        self._node = node
        self._hooks = hooks
        hooks.restored.subscribe(lambda _: self.refresh())
        self._event_log = events
        self._intervals = intervals
        self._now = now
        self._labels = labels
        self._taints = taints
        self._status = StatusAnnotation()
        self.source: NodeSource | None = None  # of the plan, to be answered; set before `run`
        self._view: NodeView | None = None
        self._answered = False  # with the Node, or that there is none
        self._since: datetime | None = None
        self._broken = False  # the Node cannot be followed
        self._state: NodeState | None = None
        self._offered: PlanUpdate | None = None
        self._shown: NodeState | None = None  # what is shown; the newest may still be held back
        self._facts = facts_of(None, labels=False)  # of the state that is shown
        self._held_back: asyncio.TimerHandle | None = None
        self._events = EventPublisher(access, node, intervals=intervals.events, wall=now)
        # Published when `node_uid` or `allocatable` is another.
        self.offered_by_node: Signal[NodeView | None] = Signal(None)
        self._kept = KeptNode(
            access,
            node,
            on_view=self._observe,
            on_following=self._following_changed,
            on_writing=self._writing_changed,
            on_overwritten=self._overwritten,
            watches=intervals.follow,
            writes=intervals.write,
            wall=now,
        )

    # --- for the other parts ----------------------------------------------------------------------

    def publish(self, state: NodeState, offered: PlanUpdate | None) -> None:
        """The node is like this now; `offered` is what it was made from."""
        self._state, self._offered = state, offered
        is_news = self._shown is None or self._shown.phase is not Phase.WORKING
        if state.phase is not Phase.WORKING or not is_news:
            self._show()
            return
        if self._held_back is None:
            loop = asyncio.get_running_loop()
            self._held_back = loop.call_later(self._intervals.patience, self._show)
        self.refresh()  # the source's answer does not wait

    @property
    def node_uid(self) -> str | None:
        """The UID of the Node that is followed; None while there is none."""
        return self._view.uid if self._view else None

    @property
    def allocatable(self) -> Mapping[str, str]:
        """What the Node offers to pods of GPUs, as device plugins registered it."""
        return self._view.allocatable if self._view else {}

    @property
    def state(self) -> Cluster:
        fault = self._kept.fault
        problem = Problem.from_error(Code.CLUSTER, fault) if fault else None
        if not problem and self._answered and self._view is None:
            message = f"the cluster has no Node {self._node}"
            problem = Problem(code=Code.CLUSTER, message=message, remedy=_NAME_IT)
        return Cluster(
            server=self._access.server,
            reachable=self._kept.is_reachable,
            registered=self._view is not None,
            since=time_json(self._since) if self._since else "",
            problem=problem,
        )

    @property
    def problems(self) -> tuple[Problem, ...]:
        """That another program keeps overwriting what is published."""
        keys = self._kept.overwritten
        return (_contest_problem(self._node, keys),) if keys else ()

    async def flush(self, *, within: float) -> None:
        """The agent stops: show the newest state, and wait so many seconds for its writing."""
        if not self._kept.is_reachable:
            return
        self._show()
        await ends_within(within, self._kept.settled())

    # --- its life ---------------------------------------------------------------------------------

    async def run(self) -> None:
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self._kept.run(), name="follow and write the Node")
            parts.create_task(self._events.run(), name="publish Events")
            parts.create_task(self._publish_events(), name="feed Events")
            parts.create_task(self._wait_for_an_answer(), name="wait for the API server")

    async def _wait_for_an_answer(self) -> None:
        await asyncio.sleep(self._intervals.first_answer)
        if not self._answered and self._kept.following_fault is None:
            self._use_last_good("the API server has not answered yet")

    async def _publish_events(self) -> NoReturn:
        last = 0
        while True:
            # One who follows too slowly is dropped, and goes on with the oldest that is left.
            with self._event_log.following(after=last) as found:
                async for event in found:
                    last = event.id
                    wanted = node_event(event)
                    if wanted is not None:
                        self._events.publish(wanted)
            await asyncio.sleep(self._intervals.events.interval)

    # --- the Node ---------------------------------------------------------------------------------

    def _observe(self, view: NodeView | None) -> None:
        if view is None:
            log.warning("the cluster has no Node of this name", node=self._node, remedy=_NAME_IT)
        elif self._view is None:
            log.info("the Node is followed", node=self._node, server=self._access.server)
        self._answered = True
        before = self.node_uid, self.allocatable
        self._view = view
        self._hooks.observe(view)
        if self.source is not None:
            self.source.observe(view)
        self.refresh()
        if (self.node_uid, self.allocatable) != before:
            self.offered_by_node.publish(view)

    def _following_changed(self, fault: ClusterFault | None) -> None:
        if fault is None or not self._broken:
            self._since = self._now()
        self._broken = fault is not None
        if fault is None:
            message = f"the API server {self._access.server} answers again"
            self._event_log.add(EventType.CLUSTER_RETURNED, message)
            self._hooks.server_answers()
            return
        message = f"the Node cannot be followed: {fault.message}"
        self._event_log.add(EventType.CLUSTER_FAULT, message, remedy=fault.remedy)
        if not self._answered:
            self._use_last_good(fault.message)

    def _writing_changed(self, fault: ClusterFault | None) -> None:
        if fault is None:
            self._event_log.add(EventType.CLUSTER_RETURNED, "the Node can be written again")
        else:
            message = f"the Node cannot be written: {fault.message}"
            self._event_log.add(EventType.CLUSTER_FAULT, message, remedy=fault.remedy)

    def _overwritten(self, keys: tuple[str, ...]) -> None:
        problem = _contest_problem(self._node, keys)
        self._event_log.add(EventType.CONTESTED, f"{problem.message}; {problem.remedy}")

    def _use_last_good(self, why: str) -> None:
        if self.source is not None:
            self.source.use_last_good(f"the Node {self._node} is not known: {why}")

    # --- what is written --------------------------------------------------------------------------

    def _show(self) -> None:
        if self._held_back is not None:
            self._held_back.cancel()
            self._held_back = None
        self._shown = self._state
        self._facts = facts_of(self._shown, labels=self._labels)
        self.refresh()

    def refresh(self) -> None:
        """Want what is to be there now; nothing is sent when it is there already."""
        if self._state is None or self._view is None:
            return
        status = shown_facts(
            self._facts, self._view, self._status, taints=self._taints, now=self._now()
        )
        answer = Wanted()
        if self.source is not None and not self._hooks.leaves_answer:
            answer = self.source.answer(self._view, self._for_source(self._state), self._offered)
        wanted = Wanted(
            {**status.annotations, **answer.annotations},
            {**status.labels, **answer.labels},
            status.conditions,
            status.taints,
        )
        self._kept.want(wanted)

    def _for_source(self, state: NodeState) -> NodeState:
        """Publishes success last, as mig-manager does: the GPU Operator's validator, for one, then
        expects the paused clients to be back.
        """
        if state.phase is Phase.IN_SYNC and self._hooks.is_unfinished:
            return replace(state, phase=Phase.WORKING)
        return state


def _contest_problem(node: str, keys: tuple[str, ...]) -> Problem:
    return Problem.of(Code.CONTESTED, keys=", ".join(keys), node=node, own=platform.node())
