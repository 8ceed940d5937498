"""After a change: lifts cordon, taint and pauses, restarts the device plugin, awaits its devices.

Runs beside the reconciler's loop, but never while that works. The Node is not read where its last
view shows that nothing is left to do.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import NoReturn

import structlog

from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.drain import changes
from nodeagent.cluster.drain.allocatable import AwaitedAllocatable
from nodeagent.cluster.drain.node import DrainedNode, api_problem
from nodeagent.cluster.drain.pods import PodSelector
from nodeagent.pacing import Backoff
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import Verdict
from nodeagent.plan.problems import Problem
from nodeagent.reconcile.active_plan import PlanEvaluation
from nodeagent.reconcile.event_log import EventType
from nodeagent.signals import Signal

log = structlog.get_logger(__name__)

_MAX_CONFLICTS = 10
_PLUGIN_LABELS = "app=nvidia-device-plugin-daemonset"  # the GPU Operator's


class Restore:
    """Undoes what was done to the Node, after each round of the reconciler, while `run` runs.

    `restored` publishes that all is undone. A cordon stays while `hold_cordon` says
    so, paused labels while another manager may have paused them.
    """

    def __init__(self, node: DrainedNode) -> None:
        self._node = node
        self.restored: Signal[None] = Signal(None)
        here = f"--field-selector spec.nodeName={node.name}"
        labels = node.plugin_pods or (_PLUGIN_LABELS,)
        self._allocatable = AwaitedAllocatable(
            node.settings.allocatable_deadline,
            tuple(f"-A -l {one} {here}" for one in labels),
            node.settings.clients != "nothing",
            self._allocatable_changed,
        )
        self._last_round: tuple[PlanEvaluation, ObservedNode] | None = None
        self._working = False  # from `begin_work` to `end_round`
        self._node_changed = False  # since it was restored; its last view may not show it
        self._devices_changed = False  # perhaps, and what the node offers with them
        self._configured = False  # the plugin's configuration was set since the last round
        self._failure: tuple[Problem, ...] = ()
        self._lock = asyncio.Lock()
        self._due = asyncio.Event()
        self.holds_cordon = False

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why something is not put back, and what the node offers wrongly."""
        return (*self._failure, *self._allocatable.problems)

    @property
    def is_due(self) -> bool:
        """Whether something that was done around a change, by an earlier agent too, is not yet put
        back.
        """
        paused = changes.restoring(self._node.known.labels)
        return self._node_changed or (bool(paused) and not self._node.may_have_paused())

    # --- events -----------------------------------------------------------------------------------

    def begin_work(self, *, changes_devices: bool) -> None:
        """Put nothing back from now on, until `end_round`."""
        self._working = True
        if changes_devices:
            self._devices_changed = True
            self._allocatable.forget()

    @asynccontextmanager
    async def changing_node(self) -> AsyncIterator[None]:
        """Wait for a restoration under way; what is done to the Node inside is restored later."""
        async with self._lock:
            self._node_changed = True
            yield

    def end_round(self, evaluation: PlanEvaluation, observed: ObservedNode) -> None:
        """A round is over: no work is in progress."""
        self._working = self._configured = False
        self._last_round = (evaluation, observed)
        self._due.set()

    def observe(self, view: NodeView | None) -> None:
        self._allocatable.observe(view)
        self._due.set()

    def hold_cordon(self, needed: bool) -> None:
        """Keep the cordon while evictions need it."""
        if self.holds_cordon and not needed:
            self._due.set()
        self.holds_cordon = needed

    # --- running ----------------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        backoff = Backoff(*self._node.intervals.restore)
        while True:
            await self._due.wait()
            self._due.clear()
            if self._working or self._last_round is None:
                continue  # `end_round` sets the event
            try:
                await self._put_back()
            except faults.ClusterFault as fault:
                self._record(fault)
                await asyncio.sleep(backoff.next())
                self._due.set()
            else:
                backoff.reset()
                self._record(None)

    async def shut_down(self, *, within: float) -> None:
        """Put back at once what can be in so many seconds; nothing is awaited any more."""
        self._working = self.holds_cordon = False
        self._last_round = None
        self._allocatable.forget()
        try:
            async with asyncio.timeout(within):
                await self._put_back()
        except (faults.ClusterFault, TimeoutError) as error:
            why = str(error) or "no answer in time"
            log.warning("what was done around a change is not put back yet", error=why)

    async def _put_back(self) -> None:
        async with self._lock:
            if self._working:
                return
            before = self._last_round
            if self._node_changed or not self._is_restored():
                await self._restore()
                self._node_changed = False
                self._configured = self._last_round is before  # False if another round ended
                self.restored.publish(None)

    def _record(self, fault: faults.ClusterFault | None) -> None:
        before, self._failure = self._failure, ()
        if fault is not None:
            self._failure = (api_problem("what was done around a change is not put back", fault),)
        if self._failure != before:
            self._node.wake("what is known of putting back has changed")

    # --- what is left to do -----------------------------------------------------------------------

    async def _restore(self) -> None:
        """Do what is left; uncordon only when no offer is awaited.

        Raises `ClusterFault`; then some of it may be done, and the rest is still to do.
        """
        deleted: set[str] = set()  # selectors, each once: the pods that replace them stay
        for _ in range(_MAX_CONFLICTS):
            view = await self._node.read()
            try:
                for change in self._changes(view):
                    await self._delete(change.delete, deleted)
                    view = await self._node.patch(view, change)
                if not self._await_offer() and (uncordon := self._uncordoning(view)):
                    await self._node.patch(view, uncordon)
            except faults.WriteConflict:
                continue
            return
        raise faults.WriteConflict("the Node changes faster than it can be written")

    def _is_restored(self) -> bool:
        """Whether the Node, as it was seen last, needs nothing done by now."""
        view = self._node.known
        return not self._changes(view) and (self._await_offer() or not self._uncordoning(view))

    def _changes(self, node: NodeView) -> tuple[changes.NodeChange, ...]:
        return changes.restorations(
            node,
            self._node.plugin_pods,
            plugin_config=self._configuration_due(),
            stay_paused=not self._node_changed and self._node.may_have_paused(),
        )

    def _uncordoning(self, node: NodeView) -> changes.NodeChange | None:
        return None if self.holds_cordon else changes.uncordoning(node)

    async def _delete(self, selectors: Iterable[PodSelector], deleted: set[str]) -> None:
        for selector in selectors:
            if str(selector) in deleted:
                continue
            for pod in await self._node.list_pods(within=self._node.intervals.answer):
                if pod.terminating or not selector.matches(pod):
                    continue
                try:
                    request = requests.delete_pod(pod.namespace, pod.name, uid=pod.uid)
                    await self._node.access.send(request)
                except (faults.ObjectMissing, faults.WriteConflict):
                    log.debug("a pod has gone by itself", pod=str(pod))
                else:
                    message = f"pod {pod} of the device plugin is deleted, to offer the new devices"
                    self._node.report(EventType.PLUGIN_RESTARTED, message)
            deleted.add(str(selector))

    def _configuration_due(self) -> str | None:
        """The plugin configuration that the plan names, once the GPUs are as it says; else None.

        It is set once after a round, so that another program that sets it, too, has the last word.
        """
        if self._last_round is None or self._configured:
            return None
        evaluation, _ = self._last_round
        is_done = evaluation.plan is not None and evaluation.plan.verdict is Verdict.IN_SYNC
        document = evaluation.document
        return document.device_plugin_config if is_done and document else None

    # --- what the node offers ---------------------------------------------------------------------

    def _await_offer(self) -> bool:
        """Begin to wait for what the node should offer, if that may be something else than before;
        return whether it is awaited now.
        """
        if self._devices_changed and self._last_round is not None and not self._working:
            self._devices_changed = False
            self._allocatable.begin(self._last_round[1].gpus)
        return self._allocatable.is_awaited

    def _allocatable_changed(self, reason: str) -> None:
        for problem in self._allocatable.problems:
            self._node.report(EventType.NOT_OFFERED, f"{problem.message} ({problem.remedy})")
        self._due.set()
        self._node.wake(reason)
