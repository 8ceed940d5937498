"""The loop that makes the node what the plan says: observe, plan, act, read back, report.

It turns a plan into parts, one for each GPU, which the GPUs' owners settle. It is level-triggered:
whatever wakes it (a new plan, the end of a process that was in the way, a timer), it looks at
everything anew and needs no memory of what it did before. What it does remember only keeps it from
doing the same in vain at once.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import structlog

from nodeagent.errors import DriverError, NodeagentError
from nodeagent.gpu.nvml_errors import LIBRARY_NOT_FOUND
from nodeagent.pacing import Backoff
from nodeagent.plan.observed import Access, ObservedNode
from nodeagent.plan.plan import NodeOutcome, NodePlan, Policy, StepReport, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.processes import ProcessWatch
from nodeagent.reconcile.active_plan import ActivePlan, PlanEvaluation
from nodeagent.reconcile.change_hooks import ChangeHooks
from nodeagent.reconcile.event_reporter import EventReporter
from nodeagent.reconcile.loop_control import Abandoned, Heartbeats, LoopControl
from nodeagent.reconcile.owner import GpuOwners
from nodeagent.reconcile.work_queue import Retry, WorkQueue, blocking_pids, undisturbing
from nodeagent.signals import Signal
from nodeagent.structs import Struct, replace
from nodeagent.views.mps import MpsOverview
from nodeagent.views.node_state import NodeState, Phase, blocking_codes, phase_of
from nodeagent.views.text import layout_words

log = structlog.get_logger(__name__)

NAME = "reconciler"
_MAX_AGE = 0.2  # seconds after which what was seen is not acted upon without another look


class Rules(Struct, frozen=True):
    """The settings of the reconciler. Times in seconds.

    `resync`: the longest time between two looks. `patience`: how long it may be busy without a sign
    of life. `mend`: whether drift is repaired or only reported.
    """

    policy: Policy
    resync: float
    patience: float
    mend: bool


@dataclass(kw_only=True, slots=True)
class Reconciler:
    """Keeps the owners' driver open as long as `run` runs.

    Everything that it needs is made before it; what follows its states subscribes to `states`.
    """

    control: LoopControl
    states: Signal[NodeState]
    plan: ActivePlan
    owners: GpuOwners
    rules: Rules
    backoff: Backoff
    reporter: EventReporter
    heartbeats: Heartbeats
    mps: Callable[[], MpsOverview] = MpsOverview
    on_plan: Callable[[], None] = lambda: None
    hooks: ChangeHooks = field(default_factory=ChangeHooks)
    on_round: Callable[[NodeOutcome | None, float], None] = lambda _outcome, _seconds: None
    own_problems: Callable[[], tuple[Problem, ...]] = tuple
    _queue: WorkQueue = field(init=False)
    _processes: ProcessWatch = field(init=False)
    _failures: int = field(init=False, default=0)  # rounds in a row with a GPU that did not answer
    _done: NodeOutcome | None = field(init=False, default=None)  # of the steps of this round
    _seen: PlanEvaluation = field(init=False, default_factory=PlanEvaluation)  # the last one
    _has_details: bool = field(init=False, default=False)  # of all devices, for people
    _observed_at: datetime | None = field(init=False, default=None)  # all GPUs, the last time

    def __post_init__(self) -> None:
        self._queue = WorkQueue(self.backoff, mend=self.rules.mend)
        self._processes = ProcessWatch(partial(self.control.wake_in_turn, "a process ended"))

    # --- the loop ---------------------------------------------------------------------------

    async def run(self) -> None:
        control = self.control
        self._alive(0)
        try:
            for trouble in await self.plan.restore():
                self.reporter.trouble(trouble)
            await control.offered.wait()
            while not control.stopping:
                look = control.begin_round() or self._failures > 0 or self._next_look() <= 0
                pause = await self._guarded_round(look=look)
                # After a halt the next round is at hand, which may need what this one prepared.
                if self.control.stopping or not control.halt.is_set():
                    now, seen = asyncio.get_running_loop().time(), self._seen
                    postponed = self._queue.postponed(seen, now)
                    self.hooks.after_round(seen, seen.observed, postponed, self._observed_at)
                control.end_round()
                pause -= await self._complete()
                self._alive(max(0.0, pause))
                await control.rest(max(0.0, pause))
        finally:
            self._processes.close()
            await self.owners.close()

    async def _guarded_round(self, *, look: bool) -> float:
        """Do one round, and report what it raises; returns the seconds until the next one."""
        try:
            pause = await self._reconcile_once(look=look)
        except NodeagentError as error:
            await self.owners.close()
            code = Code.STEP_FAILED
            if isinstance(error, DriverError):
                code = Code.DRIVER_MISSING if error.code == LIBRARY_NOT_FOUND else Code.DRIVER
            return self._failed(Problem.from_error(code, error))
        except Abandoned:
            return 0.0
        except Exception as error:  # a fault of ours; it is tried again after a while
            log.exception("reconciliation failed")
            fault = f"{type(error).__name__}: {error}"
            return self._failed(Problem.of(Code.STEP_FAILED, "ownFault", fault=fault))
        if all(gpu.answers for gpu in self.states.newest.observed.gpus):
            self._failures = 0
            return pause
        self._failures += 1
        return min(pause, self.backoff.after(self._failures))

    def _failed(self, problem: Problem) -> float:
        self._failures += 1
        pause = min(self.backoff.after(self._failures), self.rules.resync)
        self.reporter.driver_failed(problem, Retry(self._failures, round(pause, 1)))
        self.states.publish(
            replace(
                self.states.newest,
                phase=Phase.FAILED,
                driver_error=problem.message,
                problems=(
                    problem,
                    *self.own_problems(),
                    *self.plan.unreadable_problems,
                    *self.plan.source_problems,
                ),
                note=self.plan.note,
            )
        )
        return pause

    async def _reconcile_once(self, *, look: bool) -> float:
        """Do one round. Without `look` the GPUs are not observed but taken as their owners read
        them back last, unless that leaves something to do.
        """
        began = asyncio.get_running_loop().time()
        self._done = None
        await self.plan.read_offer()
        async with self.control.abandoned_at_stop():
            await self.owners.open()
        if look:
            # A new plan does not wait for the details, which only people ask for.
            brief = self.plan.is_new and self._seen.observed.gpus != ()
            evaluation = await self._observe(details=not brief)
        else:
            evaluation = await self._evaluate_read_back()
            if self._choose(evaluation).gpus:
                evaluation = await self._observe()
        self.control.resume()  # what was offered meanwhile has been judged, too
        # The disk and the API server are asked side by side: each may take 10 ms and more.
        kept = self.plan.kept
        saving = asyncio.create_task(self._save_plan(), name="save the plan")
        try:
            async with self.control.abandoned_at_stop():
                todo = self._choose(evaluation)
                objections = await self.hooks.objections(evaluation, todo, evaluation.observed)
        finally:
            await saving
        if not objections and todo.gpus:
            working = self._describe(evaluation, unfinished=True)
            self.states.publish(replace(working, phase=Phase.WORKING))
            evaluation, objections = await self._work(evaluation, todo)
        self.reporter.obstacles(evaluation, objections)
        unfinished = self.control.halt.is_set()
        self.states.publish(self._describe(evaluation, objections, unfinished=unfinished))
        self._processes.watch(blocking_pids(evaluation))
        if self.plan.kept != kept:  # a plan was accepted after the steps
            await self._save_plan()
        clock = asyncio.get_running_loop().time
        self.on_round(self._done, clock() - began)
        # Until a failed GPU may be tried again, at most until the resync.
        retry = self._queue.next_retry(evaluation)
        until_retry = math.inf if retry is None else retry - clock()
        return max(0.0, min(self._next_look(), until_retry))

    def _next_look(self) -> float:
        """The seconds until the node is observed again, if nothing asks for that earlier."""
        now = asyncio.get_running_loop().time()
        return self.control.looked_at + self.rules.resync - now

    async def _save_plan(self) -> None:
        if trouble := await self.plan.save():
            self.reporter.trouble(trouble)

    async def _work(
        self, evaluation: PlanEvaluation, todo: NodePlan
    ) -> tuple[PlanEvaluation, tuple[Problem, ...]]:
        """Do what is to be done now; returns the evaluation after it, and why nothing was done."""
        began = asyncio.get_running_loop().time()
        unprepared = await self._prepare(todo)
        if self.control.halt.is_set() or (unprepared and not undisturbing(todo).gpus):
            return evaluation, unprepared
        if asyncio.get_running_loop().time() - began > _MAX_AGE:
            evaluation = await self._observe()
        todo = self._choose(evaluation)
        if unprepared:
            todo = undisturbing(todo)
        outcome = await self.owners.settle_plan(
            todo, stop=self.control.halt, on_progress=self._step_ended
        )
        is_whole = len(outcome.gpus) == len(todo.gpus)
        if not is_whole:
            self.control.wake("a GPU was changed for a claim meanwhile")
        as_planned = is_whole and all(gpu.as_planned for gpu in outcome.gpus)
        restarted = any(gpu.restarted_driver for gpu in outcome.gpus)
        if restarted:
            self.control.wake("the driver was restarted")  # other GPUs may have lost instances
        if self.control.halt.is_set() or restarted or not as_planned:
            evaluation = await self._observe()
        else:
            evaluation = await self._evaluate_read_back()
        self._done = outcome
        self._learn(outcome, evaluation)
        return evaluation, unprepared

    async def _prepare(self, todo: NodePlan) -> tuple[Problem, ...]:
        """Have the hooks prepare for `todo`; they are cancelled when another plan comes."""
        preparing = asyncio.create_task(self.hooks.prepare(todo), name="prepare")
        halted = asyncio.create_task(self.control.halt.wait(), name="wait for another plan")
        both = {preparing, halted}
        # Shorter than the patience for everything else, so that waiting for pods is no hanging.
        every = self.rules.patience / 2
        try:
            while not (preparing.done() or halted.done()):
                self._alive(0)
                await asyncio.wait(both, timeout=every, return_when=asyncio.FIRST_COMPLETED)
            return preparing.result() if preparing.done() else ()
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _observe(self, *, details: bool = True) -> PlanEvaluation:
        async with self.control.abandoned_at_stop():
            observed = await self.owners.observe(details=details)
        self.control.looked_at = asyncio.get_running_loop().time()
        self._observed_at = datetime.now(UTC)
        self._has_details = details
        self._alive(0)
        self.reporter.driver_answers()
        return await self._evaluate(observed)

    async def _evaluate_read_back(self) -> PlanEvaluation:
        """Go by what was observed last, where each GPU that was changed since was read back."""
        self._has_details = False
        return await self._evaluate(self.owners.observed)

    async def _complete(self) -> float:
        """Read the details of new devices that only people ask for, after the devices were
        reported. Returns the seconds that it took.
        """
        if self._has_details or self._failures or self.control.halt.is_set():
            return 0.0
        clock = asyncio.get_running_loop().time
        began, before = clock(), _layouts(self.owners.observed)
        try:
            async with self.control.abandoned_at_stop():
                await self.owners.complete()
        except Abandoned:
            return 0.0
        except NodeagentError:
            self.control.wake("details of new devices cannot be read")
            return 0.0
        self._has_details, observed = True, self.owners.observed
        if _layouts(observed) == before:
            self.states.newest = replace(self.states.newest, observed=observed)
        else:
            self.control.wake("a GPU was changed since it was read back")
        return clock() - began

    async def _evaluate(self, observed: ObservedNode) -> PlanEvaluation:
        self.reporter.observed(observed)
        await self.plan.read_offer(observed)
        self._seen = evaluation = self.plan.evaluate(observed, self.rules.policy)
        self.reporter.evaluated(evaluation, self.plan.digest, self.plan.note)
        if evaluation.accepted:
            self.on_plan()
        for gpu in self._queue.observe(evaluation):
            self.reporter.drifted(gpu, mended=self.rules.mend)
        return evaluation

    def _choose(self, evaluation: PlanEvaluation) -> NodePlan:
        """The plan with only the GPUs to work on now."""
        stopping, now = self.control.stopping, asyncio.get_running_loop().time()
        gpus = () if stopping else self._queue.choose(evaluation, now)
        return replace(evaluation.plan or NodePlan(Verdict.APPLICABLE), gpus=gpus)

    def _learn(self, outcome: NodeOutcome, evaluation: PlanEvaluation) -> None:
        now = asyncio.get_running_loop().time()
        for gpu in outcome.gpus:
            uuid = gpu.plan.before.uuid
            after = next((p for p in evaluation.gpus if p.before.uuid == uuid), None)
            # Steps that were left out because of the halt are no failure.
            may_fail = gpu.failed or not self.control.halt.is_set()
            retry = self._queue.learn(gpu, after, evaluation, now) if may_fail else None
            self.reporter.worked(gpu, after, retry)

    def _step_ended(self, report: StepReport) -> None:
        self._alive(0)
        self.reporter.step(report)

    # --- the state --------------------------------------------------------------------------

    def _describe(
        self, evaluation: PlanEvaluation, objections: tuple[Problem, ...] = (), *, unfinished: bool
    ) -> NodeState:
        """The state after a look. `unfinished`: the round was halted, or is not over."""
        plan, refused, text = evaluation.plan, evaluation.refusal, self.plan.text
        mps = self.mps()
        problems = [*objections, *(plan.problems if plan else ())]
        for gpu_plan in evaluation.gpus:
            problems += self._queue.problems(gpu_plan)
        problems += (*mps.problems, *self.hooks.problems)
        phase = phase_of(refused=refused is not None, plan=plan, problems=problems, mps=mps.daemons)
        if phase is Phase.FAILED and unfinished and not problems:
            phase = Phase.WORKING
        before = self.states.newest
        return replace(
            before,
            phase=phase,
            digest=self.plan.digest,
            configuration=text.configuration if text else None,
            refusal=refused,
            note=self.plan.note,
            observed=evaluation.observed,
            observed_at=self._observed_at,
            plan=plan,
            blocking=blocking_codes(problems),
            problems=(
                *(refused.problems if refused else ()),
                *dict.fromkeys((*problems, *self.own_problems())),  # own ones change no phase
                *self.plan.source_problems,
            ),
            driver_error=_driver_error(evaluation.observed),
            mps=mps.daemons,
            rounds=before.rounds + (not unfinished),
        )

    def _alive(self, pause: float) -> None:
        self.heartbeats.beat(NAME, within=pause + self.rules.patience)


def _layouts(observed: ObservedNode) -> list[object]:
    return [(gpu.uuid, gpu.access, gpu.mig, layout_words(gpu)) for gpu in observed.gpus]


def _driver_error(observed: ObservedNode) -> str:
    """Return why the driver does not answer at all; "" when it answers for at least one GPU."""
    if any(gpu.access is not Access.UNKNOWN for gpu in observed.gpus):
        return ""
    return observed.gpus[0].access_reason if observed.gpus else ""
