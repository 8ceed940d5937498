"""What the agent says of itself in metrics: its steps and rounds, its readers, what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from nodeagent.metrics import agent_metrics
from nodeagent.metrics.agent_metrics import AgentSample, Durations, agent_families
from nodeagent.metrics.exposition import Family
from nodeagent.plan.observed import Placement
from nodeagent.plan.plan import GpuOutcome, NodeOutcome, StepReport, StepResult
from nodeagent.plan.steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    StartMps,
    StopMps,
)
from nodeagent.structs import Struct, field
from nodeagent.views.plan_report import step_kind


class Work(Struct):
    """What the agent has done since it was started."""

    _steps: Counter[tuple[str, str]] = field(default_factory=Counter)
    _out_of_use: dict[tuple[str, str, str], float] = field(default_factory=dict)
    _rounds: Durations = field(default_factory=lambda: Durations(agent_metrics.RECONCILE_DURATION))

    def add_round(self, outcome: NodeOutcome | None, seconds: float) -> None:
        """A round took `seconds` and came to this, the way back included; None: nothing to do."""
        self._rounds.add(seconds)
        for gpu in outcome.gpus if outcome else ():
            self._count(gpu.steps)
            self._count(gpu.restored)
            before = gpu.plan.before
            for slot, lost in out_of_use(gpu).items():
                key = (str(before.index), before.uuid, str(slot))
                self._out_of_use[key] = self._out_of_use.get(key, 0.0) + lost

    def _count(self, reports: Iterable[StepReport]) -> None:
        for report in reports:
            self._steps[step_kind(report.step), report.result.value] += 1

    def families(self) -> list[Family]:
        """Steps by kind and result, rounds by duration, slices by what changes took of them."""
        samples = [
            AgentSample(agent_metrics.STEPS, n, key) for key, n in sorted(self._steps.items())
        ]
        lost = sorted(self._out_of_use.items())
        samples += [
            AgentSample(agent_metrics.MIG_OUT_OF_USE, seconds, key) for key, seconds in lost
        ]
        return [*agent_families(samples), self._rounds.family()]


class ReaderState(Struct, frozen=True):
    """A reader as it is now: whether its last attempt went well, when (monotonic) the last one did
    that ended, and how many seconds that took. `gpu` and `uuid` where it reads a single GPU.
    """

    name: str
    succeeded: bool = False
    at: float | None = None
    duration: float | None = None
    gpu: str = ""
    uuid: str = ""


def reader_samples(readers: Iterable[ReaderState], now: float) -> Iterator[AgentSample]:
    """How old each reader's values are, and whether it still gets any."""
    for reader in readers:
        labels = (reader.name, reader.gpu, reader.uuid)
        if reader.at is not None:
            yield AgentSample(agent_metrics.SAMPLE_AGE, now - reader.at, labels)
        yield AgentSample(agent_metrics.READER_SUCCESS, int(reader.succeeded), labels)
        if reader.duration is not None:
            yield AgentSample(agent_metrics.READER_DURATION, reader.duration, labels)


# --- for how long a change kept each memory slice of a GPU from being used ---
#
# A slice is out of use from the step that stops or destroys what lies on it until something there
# can be used again: its instance is made and, where one is wanted, its MPS daemon serves. A slice
# that nothing is made on is merely free when the GPU's steps are over.

_TAKES = (DestroyGpuInstance, DestroyComputeInstance, StopMps)
_GIVES = (CreateGpuInstance, CreateComputeInstance, StartMps)


def out_of_use(gpu: GpuOutcome) -> Mapping[int, float]:
    """Seconds by the number of the memory slice; nothing for those that stayed in use."""
    began: dict[int, float] = {}
    until: dict[int, float] = {}
    now = 0.0
    for report in (*gpu.steps, *gpu.restored):
        if report.result is StepResult.SKIPPED:
            continue
        for slot in _slots(report, _TAKES):
            began.setdefault(slot, now)
            until.pop(slot, None)
        now += report.seconds
        for slot in _slots(report, _GIVES):
            if slot in began:
                until[slot] = now  # the last of them counts: an instance, then its daemon
    return {slot: until.get(slot, now) - since for slot, since in began.items()}


def _slots(report: StepReport, kinds: tuple[type, ...]) -> range:
    step = report.step
    place: Placement | None = getattr(step, "placement", None) if isinstance(step, kinds) else None
    return range(place.start, place.start + place.size) if place else range(0)
