"""What the agent says of itself in metrics: its steps and rounds, its readers, what it costs."""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from itertools import islice, product

from nodeagent.metrics.agent_metrics import AgentSample, Durations, agent_families
from nodeagent.metrics.exposition import Family
from nodeagent.metrics.sources import Number
from nodeagent.plan import steps
from nodeagent.plan.layouts import Card
from nodeagent.plan.observed import Gpu, Placement
from nodeagent.plan.plan import GpuOutcome, NodeOutcome, StepReport, StepResult
from nodeagent.structs import Struct, field
from nodeagent.use.advice import Advice
from nodeagent.views.plan_report import STEP_KINDS, step_kind

# Seconds. A slice takes tens of milliseconds, and the kubelet's call ends after 45.
_CLAIM_BOUNDS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 300.0)


def _durations() -> dict[str, Durations]:
    return {
        "round": Durations("nodeagent_reconcile_duration_seconds"),
        "prepare": Durations("nodeagent_claim_prepare_duration_seconds", _CLAIM_BOUNDS),
        "release": Durations("nodeagent_claim_release_duration_seconds", _CLAIM_BOUNDS),
    }


def _counts_at_start() -> dict[tuple[str, tuple[str, ...]], Number]:
    labels = product(sorted(set(STEP_KINDS.values())), (StepResult.DONE, StepResult.FAILED))
    return {("nodeagent_steps_total", (kind, result.value)): 0 for kind, result in labels}


class Work(Struct):
    """What the agent has done since it was started, counted and timed; 0 before the first time,
    which no `increase()` would see otherwise.
    """

    _counts: dict[tuple[str, tuple[str, ...]], Number] = field(default_factory=_counts_at_start)
    _durations: dict[str, Durations] = field(default_factory=_durations)

    def add_round(self, outcome: NodeOutcome | None, seconds: float) -> None:
        """A round took `seconds` and came to this, the way back included; None: nothing to do."""
        self._durations["round"].add(seconds)
        for gpu in outcome.gpus if outcome else ():
            for report in (*gpu.steps, *gpu.restored):
                self._count("nodeagent_steps_total", step_kind(report.step), report.result.value)
            before = gpu.plan.before
            for slot, lost in downtime(gpu).items():
                where = (str(before.index), before.uuid, str(slot))
                self._count("nodeagent_mig_slot_out_of_use_seconds_total", *where, by=lost)

    def add_claim(self, operation: str, seconds: float, reason: str) -> None:
        """An attempt to prepare or release a claim took `seconds`, and failed for a `reason`; "":
        it did not.
        """
        if reason:
            self._count("nodeagent_claim_failures_total", operation, reason)
        else:
            self._durations[operation].add(seconds)

    def add_reasons(self, reasons: Iterable[str]) -> None:
        """Count claims that fail for these reasons from 0."""
        for operation, reason in product(("prepare", "release"), reasons):
            self._count("nodeagent_claim_failures_total", operation, reason, by=0)

    def add_gpus(self, gpus: Iterable[Gpu]) -> None:
        """Count from 0 for memory slices of GPUs in MIG mode."""
        for gpu in gpus:
            for slot in range(Card.of(gpu).slots if gpu.in_mig_mode else 0):
                where = (str(gpu.index), gpu.uuid, str(slot))
                self._count("nodeagent_mig_slot_out_of_use_seconds_total", *where, by=0)

    def _count(self, metric: str, *labels: str, by: Number = 1) -> None:
        self._counts[metric, labels] = self._counts.get((metric, labels), 0) + by

    def families(self) -> list[Family]:
        counted = sorted(self._counts.items(), key=lambda counted: counted[0][1])
        samples = (AgentSample(metric, value, labels) for (metric, labels), value in counted)
        return [
            *agent_families(samples),
            *(durations.family() for durations in self._durations.values()),
        ]


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
            yield AgentSample("nodeagent_sample_age_seconds", now - reader.at, labels)
        yield AgentSample("nodeagent_reader_success", int(reader.succeeded), labels)
        if reader.duration is not None:
            yield AgentSample("nodeagent_reader_duration_seconds", reader.duration, labels)


# --- for how long a change kept each memory slice of a GPU from being used ---
#
# A slice is down from the step that stops or destroys what lies on it until something there
# can be used again: its instance is made and, where one is wanted, its MPS daemon serves. A slice
# that nothing is made on is merely free when the GPU's steps are over.

_TAKES = (steps.DestroyGpuInstance, steps.DestroyComputeInstance, steps.StopMps)
_GIVES = (steps.CreateGpuInstance, steps.CreateComputeInstance, steps.StartMps)


def downtime(gpu: GpuOutcome) -> Mapping[int, float]:
    """The seconds for which each memory slice could not be used, by its number; 0 is left out."""
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


def advice_samples(
    advice: Iterable[Advice], held: Collection[tuple[Hashable, tuple[str, ...]]]
) -> Iterator[AgentSample]:
    """What is to be changed of what is held now, those that free most first; `held`: devices, and
    the first four labels of who has one. No more than devices, of which a page has far more.
    """
    devices, of_now = {device for device, _ in held}, {labels for _, labels in held}
    changes = (one for one in advice if one.verdict in {"smaller", "larger"})
    found = dict.fromkeys(  # who had shares of several sizes has several
        (a.container, a.namespace, a.workload, a.device, a.verdict, a.advised) for a in changes
    )
    for labels in islice((one for one in found if one[:4] in of_now), len(devices)):
        yield AgentSample("nodeagent_advice_info", 1, labels)
