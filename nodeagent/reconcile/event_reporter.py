"""Reports what happens, each new thing once, to the event log and to the agent's log."""

from __future__ import annotations

import structlog

from nodeagent.mps.lifecycle.model import Report, Subject
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.plan import GpuOutcome, GpuPlan, StepReport, StepResult, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.steps import StartMps
from nodeagent.reconcile.active_plan import Judgement
from nodeagent.reconcile.event_log import EventLog, EventType
from nodeagent.views.mps_problems import unready_daemons
from nodeagent.views.node_state import Refusal
from nodeagent.views.text import gpu_words, layout_words, step_words

log = structlog.get_logger(__name__)

_OF_THE_DRIVER = frozenset({Code.DRIVER, Code.DRIVER_MISSING})
_NODE = ""  # where the UUID of a GPU would be

_BAD = frozenset(
    {
        EventType.PLAN_REJECTED,
        EventType.BLOCKED,
        EventType.FAILED,
        EventType.GPU_LOST,
        EventType.DRIVER_UNAVAILABLE,
        EventType.DRIFT,
    }
)


class EventReporter:
    """Remembers what was said last about each thing, so that a state that lasts is said once."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._access: dict[str, Access] = {}
        self._layouts: dict[str, tuple[str, str]] = {}  # by the last look but one, and the last
        self._slow: set[int] = set()
        self._obstacles: dict[str, tuple[Problem, ...]] = {}
        self._refusal: Refusal | None = None
        self._note = ""
        self._failure: Problem | None = None
        self._trouble = ""

    # --- the driver and the GPUs --------------------------------------------------------------

    def driver_failed(self, problem: Problem) -> None:
        if self._failure is None or problem.message != self._failure.message:
            kind = (
                EventType.DRIVER_UNAVAILABLE if problem.code in _OF_THE_DRIVER else EventType.FAILED
            )
            self._report(kind, problem.message, remedy=problem.remedy)
        self._failure = problem

    def driver_answers(self) -> None:
        if self._failure and self._failure.code in _OF_THE_DRIVER:
            self._report(EventType.DRIVER_RETURNED, "the driver answers again")
            self._failure = None

    def observed(self, node: ObservedNode) -> None:
        """Say which GPUs were lost and which came back since the last look."""
        for gpu in node.gpus:
            before = self._access.get(gpu.uuid, Access.OK)
            if gpu.access is not Access.OK and gpu.access is not before:
                why = f"{gpu_words(gpu)} does not answer: {gpu.access_reason}"
                self._report(EventType.GPU_LOST, why, gpu=gpu.uuid)
            elif gpu.access is Access.OK and before is not Access.OK:
                self._report(
                    EventType.GPU_RETURNED, f"{gpu_words(gpu)} answers again", gpu=gpu.uuid
                )
        seen = {gpu.uuid: gpu.access for gpu in node.gpus}
        for uuid in self._access.keys() - seen.keys():
            if self._access[uuid] is not Access.LOST:
                self._report(EventType.GPU_LOST, f"the GPU {uuid} is gone", gpu=uuid)
            seen[uuid] = Access.LOST
        self._access = seen
        for gpu in node.gpus:
            if gpu.access is Access.OK:
                words = layout_words(gpu)
                self._layouts[gpu.uuid] = (self._layouts.get(gpu.uuid, ("", words))[1], words)
        for index, calls in node.slow:
            if index not in self._slow:
                log.warning("the driver answers slowly", gpu=index, calls=calls)
        self._slow = {index for index, _ in node.slow}

    # --- the plan -----------------------------------------------------------------------------

    def judged(self, judgement: Judgement, digest: str, note: str) -> None:
        """Say which plan counts now, and why another does not."""
        if judgement.accepted:
            self._obstacles.clear()
            self._trouble = ""
            self._report(EventType.PLAN_ACCEPTED, f"plan {digest} is in force")
        refusal = judgement.refusal
        if refusal and refusal != self._refusal:
            kept = "the last good plan stays in force" if judgement.plan else "no plan is in force"
            first = refusal.problems[0]
            where = f"{first.path}: " if first.path else ""
            what = f"plan {refusal.digest}" if refusal.digest else "the plan"
            self._report(
                EventType.PLAN_REJECTED,
                f"{what} is refused: {where}{first.message}; {kept}",
                remedy=first.remedy,
            )
        self._refusal = refusal
        if note and note != self._note:
            self._report(EventType.PLAN_MISSING, note)
        self._note = note

    def obstacles(self, judgement: Judgement, objections: tuple[Problem, ...] = ()) -> None:
        """Say what blocks the node or its GPUs, when it is something else than before."""
        found = {_NODE: objections}
        for gpu_plan in judgement.gpus:
            blocked = gpu_plan.verdict is Verdict.BLOCKED and gpu_plan.before.access is Access.OK
            found[gpu_plan.before.uuid] = gpu_plan.problems if blocked else ()
        for uuid, problems in found.items():
            if problems != self._obstacles.get(uuid, ()):
                for problem in problems:
                    self._report(
                        EventType.BLOCKED, problem.message, gpu=uuid, remedy=problem.remedy
                    )
        self._obstacles |= found

    # --- the work -----------------------------------------------------------------------------

    def step(self, report: StepReport) -> None:
        what = {"step": step_words(report.step), "gpu": report.step.gpu}
        match report.result:
            case StepResult.DONE:
                log.info("step done", **what, seconds=round(report.seconds, 3))
            case StepResult.FAILED:
                log.warning("step failed", **what, error=report.message)
            case StepResult.SKIPPED:
                log.info("step skipped", **what, reason=report.message)
            case StepResult.UNDONE:
                log.info("step undone", **what)

    def worked(self, outcome: GpuOutcome, after: GpuPlan | None) -> None:
        """Say what came of the steps of one GPU."""
        gpu = outcome.after
        done = after is not None and after.verdict is Verdict.IN_SYNC
        # A daemon that ended is left to the fleet, so the plan may be in sync without it.
        started = any(isinstance(report.step, StartMps) for report in outcome.steps)
        unready = unready_daemons(after.before) if after is not None and started else ()
        if done and not unready:
            layouts = (layout_words(outcome.plan.before), layout_words(gpu))
            message = f"{gpu_words(gpu)} now has {layouts[1]}"
            self._report(EventType.APPLIED, message, gpu=gpu.uuid, layouts=layouts)
            return
        for problem in outcome.problems or (unready if done else ()):
            kind = EventType.BLOCKED if problem.code is Code.IN_USE else EventType.FAILED
            self._report(kind, problem.message, gpu=gpu.uuid, remedy=problem.remedy)
        lost = any(problem.code is Code.NOT_RESTORED for problem in outcome.problems)
        if outcome.turned_back and not lost:
            self._report(
                EventType.RESTORED,
                f"{gpu_words(gpu)} has its earlier layout again: {layout_words(gpu)}",
                gpu=gpu.uuid,
            )

    def drifted(self, gpu: Gpu, *, mended: bool) -> None:
        then = "it is mended" if mended else "it is left so, as the setting says"
        self._report(
            EventType.DRIFT,
            f"{gpu_words(gpu)} was changed by another program: now {layout_words(gpu)}; {then}",
            gpu=gpu.uuid,
            layouts=self._layouts[gpu.uuid],
        )

    def trouble(self, message: str) -> None:
        """Something that does not stop the work but that a person should know."""
        if message != self._trouble:
            self._report(EventType.FAILED, message)
        self._trouble = message

    def _report(
        self,
        kind: EventType,
        message: str,
        *,
        gpu: str = "",
        remedy: str = "",
        layouts: tuple[str, str] = ("", ""),
    ) -> None:
        """`layouts` are those of the GPU before and after what happened."""
        text, (before, after) = f"{message} ({remedy})" if remedy else message, layouts
        self._events.add(kind, text, gpu=gpu, before=before, after=after)
        facts = {"gpu": gpu} if gpu else {}
        facts |= {"remedy": remedy} if remedy else {}
        (log.warning if kind in _BAD else log.info)(message, event_type=kind.value, **facts)


# What a person should look at; the rest is good to know.
BAD = frozenset(
    {EventType.MPS_ENDED, EventType.MPS_FAULT, EventType.MPS_FAILED, EventType.MPS_CLIENT}
)

LAST_SAID = "; the last it said: "  # then a line of a daemon's log, with its time and pid


_EVENTS = {
    Subject.STARTED: EventType.MPS_STARTED,
    Subject.READY: EventType.MPS_READY,
    Subject.EXITED: EventType.MPS_ENDED,
    Subject.START_FAILED: EventType.MPS_ENDED,
    Subject.FOREIGN_USER_WAITING: EventType.MPS_CLIENT,
    Subject.DRAINED: EventType.MPS_DRAINED,
    Subject.STILL_IN_USE: EventType.MPS_IN_USE,
    Subject.FAILED: EventType.MPS_FAILED,
}


def event_of(report: Report) -> tuple[EventType, str]:
    """The event that a report makes, and its message, the last line of the log included."""
    said = f"{LAST_SAID}{report.lines[-1]}" if report.lines else ""
    return _EVENTS.get(report.subject, EventType.MPS_FAULT), report.message + said
