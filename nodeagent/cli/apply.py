"""`nodeagent apply`: make the node as the document says, once, without an agent."""

from __future__ import annotations

import asyncio
import math
import signal
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodeagent.cli import event_loop, exit_codes
from nodeagent.cli.command_settings import command_settings
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.node import as_accepted, recorded_claims, writing
from nodeagent.cli.output import Output
from nodeagent.cli.plan import SOURCE, read_or_report, rejection, report, run_plan, with_unready
from nodeagent.cli.progress import ProgressLine, blocker_words, wait_for_blockers
from nodeagent.cli.shared_node import changing_node
from nodeagent.errors import DocumentError
from nodeagent.pacing import Backoff
from nodeagent.plan.desired import (
    DesiredNode,
    PlanDocument,
    WithClaims,
    node_with_claims,
    unclaimed,
)
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import (
    GpuOutcome,
    GpuPlan,
    NodeOutcome,
    NodePlan,
    StepReport,
    Verdict,
    worst,
)
from nodeagent.plan.planner import plan
from nodeagent.plan.resolve import resolve
from nodeagent.plan.steps import Step
from nodeagent.reconcile.executor import execute
from nodeagent.settings import Settings
from nodeagent.structs import replace
from nodeagent.terminal.plan_page import outcome_page, step_line
from nodeagent.views.plan_report import outcome_json
from nodeagent.views.text import step_words

if TYPE_CHECKING:
    from nodeagent.cli.shared_node import ChangeableNode

_IN_SYNC = NodePlan(Verdict.IN_SYNC)
_NOTHING_DONE = NodeOutcome(_IN_SYNC, ())
_RETRY_INTERVAL = 2.0  # seconds after a first refusal by the driver; each further one doubles it


def run_apply(options: Namespace, output: Output) -> ExitCode:
    """Apply the document; the exit code reports the final state."""
    if options.dry_run:
        return run_plan(options, output)
    settings = command_settings(options)
    document = read_or_report(options, output)
    try:
        result = event_loop.run(_apply(options, settings, document, output))
    except DocumentError as error:
        refused = rejection(error, document)
        report(refused, document, output, settings.policy)
        return exit_codes.of_plan(refused)
    _report(result, output)
    return _exit_code(result)


async def _apply(
    options: Namespace, settings: Settings, document: PlanDocument, output: Output
) -> _Rounds:
    """Apply the document in rounds. Raises DocumentError if it cannot be meant for this node."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + options.wait
    progress = ProgressLine()
    with _stopped_by_signals() as stop, writing(options, settings):
        async with changing_node(options, settings, document) as (node, host):
            observed, with_claims = await node.observe(), recorded_claims(options, settings)
            named = as_accepted(options, settings, observed, document.digest)
            desired = resolve(document, unclaimed(named, with_claims), host)
            rounds = _Rounds(node, settings, desired, output, with_claims, progress, stop)
            await rounds.do_round(observed)
            while rounds.blocked:
                left = max(deadline - clock(), 0.0)
                progress.show(f"waiting for {blocker_words(rounds.rest)}, at most {left:.0f} s")
                again = await wait_for_blockers(deadline, stop)
                progress.clear()
                if not again:
                    break
                await rounds.do_round(await node.observe())
            rounds.add_unready()
            return rounds


@dataclass
class _Rounds:
    """Planning and acting until nothing is blocked: a round, and one more for each end of a user.

    `outcome` is what was done, `rest` the plan for what was read back afterwards: in sync when all
    is done.
    """

    node: ChangeableNode
    settings: Settings
    desired: DesiredNode
    output: Output
    with_claims: WithClaims
    progress: ProgressLine
    stop: asyncio.Event
    rest: NodePlan = _IN_SYNC
    outcome: NodeOutcome = _NOTHING_DONE
    _gpus: dict[str, GpuOutcome] = field(default_factory=dict)
    _refusals: dict[str, Backoff] = field(default_factory=dict)
    _retry_at: dict[str, float] = field(default_factory=dict)

    @property
    def blocked(self) -> bool:
        """Whether the end of a user may let more be done."""
        codes = (exit_codes.of_verdict(gpu.verdict, gpu.problems) for gpu in self.rest.gpus)
        return ExitCode.BLOCKED in codes

    async def do_round(self, observed: ObservedNode) -> None:
        """Do what can be done now; a GPU on which a step failed is left alone."""
        now = self._plan(observed)
        to_try = tuple(gpu for gpu in now.gpus if self._may_try(gpu.before.key))
        done = await self._carry_out(replace(now, gpus=to_try))
        for gpu in done.gpus:
            earlier = self._gpus.get(gpu.plan.before.key)
            self._gpus[gpu.plan.before.key] = _joined(earlier, gpu) if earlier else gpu
        outcomes = tuple(self._gpus[gpu.before.key] for gpu in now.gpus)
        joint = replace(now, gpus=tuple(gpu.plan for gpu in outcomes))
        self.outcome = NodeOutcome(joint, outcomes)
        for gpu in done.gpus:
            self._note_refusal(gpu)
        self.rest = _refused(self._plan(_read_back(observed, outcomes)), self._gpus)

    def _may_try(self, key: str) -> bool:
        if key not in self._gpus or not self._gpus[key].failed:
            return True
        return asyncio.get_running_loop().time() >= self._retry_at.get(key, math.inf)

    def _note_refusal(self, gpu: GpuOutcome) -> None:
        """Schedule a retry of what was refused as in use, with backoff: each retry destroys and
        creates devices.
        """
        key = gpu.plan.before.key
        self._retry_at.pop(key, None)
        if gpu.refused_in_use:
            backoff = self._refusals.setdefault(key, Backoff(_RETRY_INTERVAL, math.inf))
            self._retry_at[key] = asyncio.get_running_loop().time() + backoff.next()

    def add_unready(self) -> None:
        """Report the daemons that no step is left for, and that are not Ready all the same."""
        failed = {gpu.plan.before.key for gpu in self.outcome.gpus if gpu.failed}  # reported
        rest = tuple(
            gpu if gpu.before.key in failed else with_unready(gpu) for gpu in self.rest.gpus
        )
        unready = {gpu.before.key: gpu.problems for gpu in rest if gpu.verdict is Verdict.IN_SYNC}
        gpus = tuple(
            replace(gpu, problems=(*gpu.problems, *unready.get(gpu.plan.before.key, ())))
            for gpu in self.outcome.gpus
        )
        self.rest = replace(self.rest, gpus=rest)
        self.outcome = replace(self.outcome, gpus=gpus)

    def _plan(self, observed: ObservedNode) -> NodePlan:
        desired = node_with_claims(self.desired, observed, self.with_claims)
        return plan(desired, observed, self.settings.policy)

    async def _carry_out(self, now: NodePlan) -> NodeOutcome:
        indices = {gpu.before.uuid: gpu.before.index for gpu in now.gpus}

        def words(step: Step) -> str:
            return f"GPU {indices[step.gpu]} {step_words(step)}"

        def ended(step: StepReport) -> None:
            self.progress.clear()
            self.output.page([step_line(indices[step.step.gpu], step)])
            self.progress.end(words(step.step))

        return await execute(
            now,
            self.node,
            parallel=self.settings.gpu.parallel,
            policy=self.settings.policy,
            on_begin=lambda step: self.progress.begin(words(step)),
            on_progress=ended,
            stop=self.stop,
        )


def _refused(rest: NodePlan, outcomes: Mapping[str, GpuOutcome]) -> NodePlan:
    """The plan, with the GPUs blocked that the driver reports as in use."""
    gpus = tuple(
        GpuPlan.refused(gpu.before, Verdict.BLOCKED, *outcomes[gpu.before.key].problems)
        if gpu.verdict is Verdict.APPLICABLE and outcomes[gpu.before.key].refused_in_use
        else gpu
        for gpu in rest.gpus
    )
    verdicts = {gpu.verdict for gpu in gpus} | ({Verdict.BLOCKED} if rest.problems else set())
    return replace(rest, gpus=gpus, verdict=worst(verdicts))


def _joined(first: GpuOutcome, second: GpuOutcome) -> GpuOutcome:
    """Two rounds on one GPU as one outcome; a first that was refused is dropped."""
    if first.refused_in_use:
        return replace(second, plan=replace(second.plan, before=first.plan.before))
    steps = (*first.plan.steps, *second.plan.steps)
    return replace(
        second,
        plan=replace(second.plan, before=first.plan.before, steps=steps),
        steps=(*first.steps, *second.steps),
        restored=(*first.restored, *second.restored),
    )


def _read_back(observed: ObservedNode, outcomes: tuple[GpuOutcome, ...]) -> ObservedNode:
    after = {gpu.plan.before.key: gpu.after for gpu in outcomes}
    return replace(observed, gpus=tuple(after.get(gpu.key, gpu) for gpu in observed.gpus))


@contextmanager
def _stopped_by_signals() -> Iterator[asyncio.Event]:
    """An event that SIGTERM and Ctrl-C set: the running steps end, no other begins."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _exit_code(applied: _Rounds) -> ExitCode:
    if applied.rest.verdict is Verdict.APPLICABLE:  # a step failed, or it was asked to stop
        return ExitCode.FAILED
    # A daemon that did not start is no step that is left: its supervisor goes on trying.
    failed = {gpu.plan.before.key for gpu in applied.outcome.gpus if gpu.failed}
    unfinished = any(
        gpu.verdict is Verdict.APPLICABLE
        or (gpu.verdict is Verdict.IN_SYNC and (gpu.before.key in failed or gpu.problems))
        for gpu in applied.rest.gpus
    )
    code = exit_codes.of_plan(applied.rest)
    return exit_codes.most_severe([code, ExitCode.FAILED]) if unfinished else code


def _report(applied: _Rounds, output: Output) -> None:
    if output.is_text:
        output.page(
            outcome_page(applied.outcome, applied.rest, output.width, stopped=applied.stop.is_set())
        )
        return

    outcome = applied.outcome
    data = outcome_json(outcome, digest=outcome.plan.digest, source=SOURCE)
    output.document({**data, "verdictAfter": applied.rest.verdict.value})
