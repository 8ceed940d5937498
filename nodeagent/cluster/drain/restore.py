"""After a change: puts back what was done before it, and awaits what the node should offer.

Runs beside the loop, but never while it works. The Node is not read where its last view shows that
nothing is left to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NoReturn

import structlog

from nodeagent.backoff import Backoff
from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.drain.device_plugin import mismatches
from nodeagent.cluster.drain.executor import DrainExecutor
from nodeagent.cluster.drain.node_access import facts_of
from nodeagent.cluster.drain.plan import PLUGIN_CONFIG, Rules, conclude, restoring
from nodeagent.cluster.drain.plugin_outlook import PluginOutlook
from nodeagent.cluster.drain.steps import AwaitAllocatable, NodeFacts, Step
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.active_plan import Judgement
from nodeagent.reconcile.event_log import EventType


class AwaitedAllocatable:
    """Nothing is asked for. `changed` is called when the wait is over or the problems are others.

    For `deadline` seconds a difference is no problem; then it is one until it is gone.
    """

    def __init__(self, *, deadline: float, changed: Callable[[str], None]) -> None:
        self._deadline = deadline
        self._changed = changed
        self._expected: Mapping[str, int] | None = None
        self._allocatable: Mapping[str, str] | None = None  # None: not known
        self._timer: asyncio.TimerHandle | None = None
        self.problems: tuple[Problem, ...] = ()

    @property
    def expected(self) -> Mapping[str, int] | None:
        """What is still waited for; None once it has come or the time is over."""
        return self._expected if self._timer is not None else None

    def begin(self, expected: Mapping[str, int]) -> None:
        """Wait for this; the same as is waited for already changes nothing."""
        if self.expected == expected:
            return
        self.forget()
        self._expected = expected
        self._timer = asyncio.get_running_loop().call_later(self._deadline, self._time_is_over)
        self._compare()

    def forget(self) -> None:
        """The GPUs change again, or the wait is over."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._expected, self.problems = None, None, ()

    def saw(self, allocatable: Mapping[str, str] | None) -> None:
        """The node offers this now."""
        self._allocatable = allocatable
        self._compare()

    def _time_is_over(self) -> None:
        self._timer = None
        self._compare()
        if not self.problems:  # what the node offers is not known
            self._changed("the node's offer was waited for long enough")

    def _compare(self) -> None:
        if self._expected is None or self._allocatable is None:
            return
        found = mismatches(self._expected, self._allocatable)
        if not found:
            self.forget()
            self._changed("the node offers what it should")
        elif self._timer is None and found != self.problems:
            self.problems = found
            self._changed("the node does not offer what it should")


log = structlog.get_logger(__name__)

ReportEvent = Callable[[EventType, str], None]


def configuration_of(judgement: Judgement) -> str | None:
    """The plugin's configuration that the plan asks for; None where it does not."""
    return judgement.document.device_plugin_config if judgement.document else None


class Restore:
    """Puts back while `run` runs, once a round has ended.

    `wake` is called when the problems are others, `done` when all is put back. `retry` are the
    seconds between two attempts, at first and at most; `deadline` is how long the node may take to
    offer what it should. A cordon stays while evictions need it, paused labels while another
    manager may have paused them.
    """

    def __init__(
        self,
        executor: DrainExecutor,
        outlook: PluginOutlook,
        *,
        rules: Rules,
        needs_cordon: Callable[[], bool],
        may_have_paused: Callable[[NodeView | None], bool],
        deadline: float,
        retry: tuple[float, float],
        wake: Callable[[str], None],
        done: Callable[[], None],
        report: ReportEvent,
    ) -> None:
        self._executor = executor
        self._outlook = outlook
        self._rules = rules
        self._needs_cordon = needs_cordon
        self._may_have_paused = may_have_paused
        self._retry = retry
        self._wake = wake
        self._done = done
        self._report = report
        self._offer = AwaitedAllocatable(deadline=deadline, changed=self._offer_changed)
        self._view: NodeView | None = None
        self._seen: tuple[Judgement, ObservedNode] | None = None  # when the last round ended
        self._working = False  # from the beginning of work to the end of its round
        self._touched = False  # its view may be older than what was done to it
        self._changed = False  # devices may have changed, and the node's offer with them
        self._chosen = False  # the plugin's configuration was set since the last round
        self._to_await: Mapping[str, int] | None = None  # once all is put back
        self._undone: tuple[Problem, ...] = ()
        self._lock = asyncio.Lock()
        self._due = asyncio.Event()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why something is not put back, and what the node offers wrongly."""
        return (*self._undone, *self._offer.problems)

    @property
    def is_due(self) -> bool:
        """Whether something that was done around a change, by an earlier agent too, is not yet put
        back.
        """
        paused = restoring(facts_of(self._view).labels)
        return self._touched or (bool(paused) and not self._may_have_paused(self._view))

    @property
    def seen(self) -> tuple[Judgement, ObservedNode] | None:
        """What the last round ended with."""
        return self._seen

    # --- events -----------------------------------------------------------------------------------

    def work_begins(self, *, changes_devices: bool) -> None:
        """From now on nothing is put back, until `settle`."""
        self._working = True
        if changes_devices:
            self._changed, self._to_await = True, None
            self._offer.forget()

    @asynccontextmanager
    async def touching(self) -> AsyncIterator[None]:
        """What is done to the Node within is to be put back; waits for what is being put back."""
        async with self._lock:
            self._touched = True
            yield

    def settle(self, judgement: Judgement, observed: ObservedNode) -> None:
        """A round is over: no work is in progress."""
        self._working = self._chosen = False
        self._seen = (judgement, observed)
        self.follow_up()

    def saw(self, view: NodeView | None) -> None:
        """The Node is like this now."""
        self._view = view
        self._offer.saw(view.allocatable if view is not None else None)
        self.follow_up()

    def follow_up(self) -> None:
        """Something may be left to do."""
        self._due.set()

    # --- its life ---------------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """Put back whatever is due until cancelled."""
        backoff = Backoff(*self._retry)
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                if self._working or self._seen is None:
                    continue  # `settle` comes
                try:
                    await self._put_back()
                except ClusterFault as fault:
                    self._failed(fault)
                    await asyncio.sleep(backoff.next())
                    self._due.set()
                else:
                    backoff.reset()
                    self._failed(None)
        finally:
            self._offer.forget()

    async def leave(self, *, within: float) -> None:
        """Put back at once what can be in so many seconds; nothing is awaited any more."""
        self._working = self._changed = False
        self._seen = self._to_await = None
        self._offer.forget()
        try:
            async with asyncio.timeout(within):
                await self._put_back()
        except (ClusterFault, TimeoutError) as error:
            why = str(error) or "no answer in time"
            log.warning("what was done around a change is not put back yet", error=why)

    async def _put_back(self) -> None:
        async with self._lock:
            if self._working:
                return
            await self._expect()
            if self._touched or not self._is_as_left():
                await self._executor.conclude(self._left, self._await_offer)
                self._touched = False
                self._chosen = True
                self._done()

    def _failed(self, fault: ClusterFault | None) -> None:
        before, self._undone = self._undone, ()
        if fault is not None:
            self._undone = (
                Problem(
                    Code.CLUSTER,
                    f"what was done around a change is not put back: {fault.message}",
                    fault.remedy or "it is tried again",
                ),
            )
        if self._undone != before:
            self._wake("what is known of putting back has changed")

    # --- what is left to do -----------------------------------------------------------------------

    def _left(self, node: NodeFacts) -> tuple[Step, ...]:
        awaited = self._to_await if self._to_await is not None else self._offer.expected
        return conclude(
            node,
            self._rules,
            expected=awaited,
            plugin_config=self._configuration_due(),
            stays_cordoned=self._needs_cordon(),
            stay_paused=not self._touched and self._may_have_paused(self._view),
        )

    def _is_as_left(self) -> bool:
        """Whether the Node, as it was seen last, needs nothing done by now."""
        steps = self._left(facts_of(self._view))
        if steps and isinstance(steps[0], AwaitAllocatable):
            self._await_offer(steps[0])  # what comes behind it waits, too
            return True
        return not steps

    def _configuration_due(self) -> str | None:
        """The plugin's configuration goes with the layout that it was written for.

        Set once after a round: who else sets it is no partner for a race.
        """
        if self._seen is None or self._chosen:
            return None
        plan = self._seen[0].plan
        is_done = plan is not None and plan.verdict is Verdict.IN_SYNC
        return configuration_of(self._seen[0]) if is_done else None

    # --- what the node offers ---------------------------------------------------------------------

    async def _expect(self) -> None:
        """Find out what the node should offer, if that may be something else than before."""
        if self._seen is None:
            return
        labels, due = facts_of(self._view).labels, self._configuration_due()
        if not self._changed and (due is None or labels.get(PLUGIN_CONFIG) == due):
            return
        self._changed = False
        self._to_await = await self._outlook.expected(self._seen[1], labels, wanted=due)

    def _await_offer(self, step: AwaitAllocatable) -> None:
        self._to_await = None
        self._offer.begin(step.expected)

    def _offer_changed(self, reason: str) -> None:
        for problem in self._offer.problems:
            self._report(EventType.NOT_OFFERED, problem.message)
        self.follow_up()
        self._wake(reason)
