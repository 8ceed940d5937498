"""Reports what the loop decides and what happens to it, each new thing once, to the event log."""

import time
from collections.abc import Callable
from typing import Final

import structlog

from nodeagent.mps.lifecycle.model import Report, ReportSubject
from nodeagent.pacing import RateLimit
from nodeagent.plan.observed import NOT_LISTED, Gpu, ObservedNode
from nodeagent.plan.plan import GpuOutcome, GpuPlan, StepReport, StepResult, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.remedies import silent_remedy
from nodeagent.plan.steps import StartMps
from nodeagent.reconcile.active_plan import PlanEvaluation
from nodeagent.reconcile.event_log import LAST_SAID, EventLog, EventType
from nodeagent.reconcile.work_queue import Retry
from nodeagent.views.mps import unready_daemons
from nodeagent.views.shapes import Refused
from nodeagent.views.text import gpu_words, layout_words, step_words

log = structlog.get_logger(__name__)

_OF_THE_DRIVER = frozenset({Code.DRIVER, Code.DRIVER_MISSING})
_NODE = ""  # where the UUID of a GPU would be
_REPEAT_INTERVAL = 60.0  # seconds in which changed users that block a GPU are reported once

_STEPS: Final = {
    StepResult.DONE: EventType.STEP_DONE,
    StepResult.FAILED: EventType.STEP_FAILED,
    StepResult.SKIPPED: EventType.STEP_SKIPPED,
}  # that steps were undone is one event at the end: `RESTORED`


class EventReporter:
    """Remembers the last report about each thing, so that a lasting state is reported once.

    `clock` gives seconds and does not jump.
    """

    def __init__(self, events: EventLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._events = events
        self._clock = clock
        self._other_users = RateLimit(_REPEAT_INTERVAL)
        self._silent = frozenset[tuple[str, int]]()  # GPUs that health does not know of
        self._layouts: dict[str, tuple[str, str]] = {}  # at the last observation but one, and now
        self._slow: set[int] = set()
        self._obstacles: dict[str, tuple[Problem, ...]] = {}
        self._refusal: Refused | None = None
        self._note = ""
        self._failure: Problem | None = None
        self._trouble = ""

    # --- the driver and the GPUs --------------------------------------------------------------

    def driver_failed(self, problem: Problem, retry: Retry) -> None:
        if self._failure is None or problem.message != self._failure.message:
            kind = (
                EventType.DRIVER_UNAVAILABLE if problem.code in _OF_THE_DRIVER else EventType.FAILED
            )
            facts = retry._asdict()
            self._events.add(kind, problem.message, remedy=problem.remedy, facts=facts)
        self._failure = problem

    def driver_answers(self) -> None:
        if self._failure and self._failure.code in _OF_THE_DRIVER:
            self._events.add(EventType.DRIVER_RETURNED, "the driver answers again")
            self._failure = None

    def observed(self, node: ObservedNode) -> None:
        self._events.indices = {gpu.uuid: gpu.index for gpu in node.gpus}
        # Of those that are listed, and have a known UUID, health has events, with what to do.
        silent = {
            (gpu.uuid, gpu.index): gpu
            for gpu in node.gpus
            if not gpu.uuid or gpu.access_reason == NOT_LISTED
        }
        for key in sorted(silent.keys() - self._silent):
            gpu = silent[key]
            why = f"{gpu_words(gpu)} does not answer: {gpu.access_reason}"
            self._events.add(EventType.GPU_LOST, why, gpu=gpu.uuid, remedy=silent_remedy(gpu))
        self._silent = frozenset(silent)
        for gpu in node.gpus:
            if gpu.answers:
                words = layout_words(gpu)
                self._layouts[gpu.uuid] = (self._layouts.get(gpu.uuid, ("", words))[1], words)
        for index, calls in node.slow:
            if index not in self._slow:
                log.warning("the driver answers slowly", gpu=index, calls=calls)
        self._slow = {index for index, _ in node.slow}

    # --- the plan -----------------------------------------------------------------------------

    def evaluated(self, evaluation: PlanEvaluation, digest: str, note: str) -> None:
        if evaluation.accepted:
            self._obstacles.clear()
            self._trouble = ""
            named = evaluation.accepted.configuration
            facts = {"digest": digest, **({"configuration": named} if named else {})}
            self._events.add(EventType.PLAN_ACCEPTED, f"plan {digest} is in force", facts=facts)
        refusal = evaluation.refusal
        if refusal and refusal != self._refusal:
            kept = "the last good plan stays in force" if evaluation.plan else "no plan is in force"
            first = refusal.problems[0]
            where = f"{first.path}: " if first.path else ""
            what = f"plan {refusal.digest}" if refusal.digest else "the plan"
            self._events.add(
                EventType.PLAN_REJECTED,
                f"{what} is refused: {where}{first.message}; {kept}",
                remedy=first.remedy,
            )
        self._refusal = refusal
        if note and note != self._note:
            self._events.add(EventType.PLAN_MISSING, note)
        self._note = note

    def obstacles(self, evaluation: PlanEvaluation, objections: tuple[Problem, ...] = ()) -> None:
        """Report what blocks the node or its GPUs when that has changed. Where only the users have
        changed, who may come and go by the second, it is reported once in a while.
        """
        found = {_NODE: objections}
        for gpu_plan in evaluation.gpus:
            blocked = gpu_plan.verdict is Verdict.BLOCKED and gpu_plan.before.is_there
            found[gpu_plan.before.uuid] = gpu_plan.problems if blocked else ()
        for uuid, problems in found.items():
            before = self._obstacles.get(uuid, ())
            if problems == before:
                continue
            due = self._other_users.due(uuid, self._clock())
            if problems and not due and _causes(problems) == _causes(before):
                continue
            self._obstacles[uuid] = problems
            for problem in problems:
                self._events.add(
                    EventType.BLOCKED, problem.message, gpu=uuid, remedy=problem.remedy
                )

    # --- the work -----------------------------------------------------------------------------

    def step(self, report: StepReport) -> None:
        """A step ended, with the reason why it was taken."""
        failed = f": {report.message}" if report.message else ""
        ran = report.result in (StepResult.DONE, StepResult.FAILED)
        self._events.add(
            _STEPS[report.result],
            f"step {report.result.value}: {step_words(report.step)}{failed}",
            gpu=report.step.gpu,
            reason=report.step.reason,
            facts={"seconds": round(report.seconds, 3)} if ran else {},
        )

    def worked(self, outcome: GpuOutcome, after: GpuPlan | None, retry: Retry | None) -> None:
        gpu = outcome.after
        done = after is not None and after.verdict is Verdict.IN_SYNC
        # A daemon that ended is left to the fleet, so the plan may be in sync without it.
        started = any(isinstance(report.step, StartMps) for report in outcome.steps)
        unready = unready_daemons(after.before) if after is not None and started else ()
        if done and not unready:
            self._changed(EventType.APPLIED, outcome)
            return
        for problem in outcome.problems or (unready if done else ()):
            if after is not None and problem in after.problems:
                continue  # reported by `obstacles`
            kind = EventType.BLOCKED if problem.code is Code.IN_USE else EventType.FAILED
            self._events.add(
                kind,
                problem.message,
                gpu=gpu.uuid,
                remedy=problem.remedy,
                facts=retry._asdict() if retry else {},
            )
        lost = any(problem.code is Code.NOT_RESTORED for problem in outcome.problems)
        if outcome.turned_back and not lost:
            self._events.add(
                EventType.RESTORED,
                f"{gpu_words(gpu)} has its earlier layout again: {layout_words(gpu)}",
                gpu=gpu.uuid,
            )

    def changed_for_claim(self, outcome: GpuOutcome | None) -> None:
        """Report what steps for a claim changed on a GPU; the claim's outcome has its own event."""
        if outcome and layout_words(outcome.plan.before) != layout_words(outcome.after):
            self._changed(EventType.CHANGED_FOR_CLAIM, outcome)

    def _changed(self, kind: EventType, outcome: GpuOutcome) -> None:
        before, after = layout_words(outcome.plan.before), layout_words(outcome.after)
        message = f"{gpu_words(outcome.after)} now has {after}"
        self._events.add(kind, message, gpu=outcome.after.uuid, before=before, after=after)

    def drifted(self, gpu: Gpu, *, mended: bool) -> None:
        then = "it is mended" if mended else "it is left so, as the setting says"
        before, after = self._layouts[gpu.uuid]
        self._events.add(
            EventType.DRIFT,
            f"{gpu_words(gpu)} was changed by another program: now {layout_words(gpu)}; {then}",
            gpu=gpu.uuid,
            before=before,
            after=after,
        )

    def trouble(self, message: str) -> None:
        """Something that does not stop the work but that a person should know."""
        if message != self._trouble:
            self._events.add(EventType.FAILED, message)
        self._trouble = message


def _causes(problems: tuple[Problem, ...]) -> list[tuple[str, str]]:
    return [(problem.code, problem.path) for problem in problems]


_EVENTS = {
    ReportSubject.STARTED: EventType.MPS_STARTED,
    ReportSubject.READY: EventType.MPS_READY,
    ReportSubject.EXITED: EventType.MPS_ENDED,
    ReportSubject.START_FAILED: EventType.MPS_ENDED,
    ReportSubject.FOREIGN_USER_WAITING: EventType.MPS_CLIENT,
    ReportSubject.DRAINED: EventType.MPS_DRAINED,
    ReportSubject.STILL_IN_USE: EventType.MPS_IN_USE,
    ReportSubject.FAILED: EventType.MPS_FAILED,
}


def event_of(report: Report) -> tuple[EventType, str]:
    """The event that a report makes, and its message, the last line of the log included."""
    said = f"{LAST_SAID}{report.lines[-1]}" if report.lines else ""
    return _EVENTS.get(report.subject, EventType.MPS_FAULT), report.message + said
