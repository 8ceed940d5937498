"""What the agent says of itself in metrics: its steps and rounds, its readers, what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

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
from nodeagent.views.plan_report import step_kind


@dataclass(slots=True)
class Work:
    """What the agent has done since it was started."""

    _steps: Counter[tuple[str, str]] = field(default_factory=Counter)
    _out_of_use: dict[tuple[str, str, str], float] = field(default_factory=dict)
    _rounds: Durations = field(default_factory=lambda: Durations(agent_metrics.RECONCILE_DURATION))

    def done(self, outcome: NodeOutcome, seconds: float) -> None:
        """A round took `seconds` and came to this, the way back included."""
        self._rounds.add(seconds)
        for gpu in outcome.gpus:
            self._count(gpu.steps)
            self._count(gpu.restored)
            before = gpu.plan.before
            for slot, lost in out_of_use(gpu).items():
                key = (str(before.index), before.uuid, str(slot))
                self._out_of_use[key] = self._out_of_use.get(key, 0.0) + lost

    def looked(self, seconds: float) -> None:
        """A round found nothing to do."""
        self._rounds.add(seconds)

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


@dataclass(frozen=True, slots=True)
class ReaderState:
    """A reader as it is now. `age` and `duration` in seconds, None before the first attempt that
    went well, and before the first at all. `gpu` and `uuid` where it reads a single GPU.
    """

    name: str
    succeeded: bool
    age: float | None = None
    duration: float | None = None
    gpu: str = ""
    uuid: str = ""


def reader_samples(readers: Iterable[ReaderState]) -> Iterator[AgentSample]:
    """How old each reader's values are, and whether it still gets any."""
    for reader in readers:
        labels = (reader.name, reader.gpu, reader.uuid)
        if reader.age is not None:
            yield AgentSample(agent_metrics.SAMPLE_AGE, reader.age, labels)
        yield AgentSample(agent_metrics.READER_SUCCESS, int(reader.succeeded), labels)
        if reader.duration is not None:
            yield AgentSample(agent_metrics.READER_DURATION, reader.duration, labels)


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """What the agent's process costs: seconds, bytes, counts; `started` in Unix time."""

    cpu_seconds: float
    resident: int
    virtual: int
    open_files: int
    most_files: int
    started: float


def process_samples(cost: ProcessCost) -> Iterator[AgentSample]:
    """Under the names that every Prometheus client uses."""
    yield AgentSample(agent_metrics.CPU_SECONDS, cost.cpu_seconds)
    yield AgentSample(agent_metrics.RESIDENT_MEMORY, cost.resident)
    yield AgentSample(agent_metrics.VIRTUAL_MEMORY, cost.virtual)
    yield AgentSample(agent_metrics.OPEN_FILES, cost.open_files)
    yield AgentSample(agent_metrics.MOST_FILES, cost.most_files)
    yield AgentSample(agent_metrics.START_TIME, cost.started)


def build_sample(version: str, python: str) -> AgentSample:
    """Which agent runs."""
    return AgentSample(agent_metrics.BUILD_INFO, 1, (version, python))


def refusal_samples(counts: Mapping[tuple[str, str], int]) -> Iterator[AgentSample]:
    """What was refused, by listener and reason."""
    for key, count in sorted(counts.items()):
        yield AgentSample(agent_metrics.HTTP_REFUSED, count, key)


def held_samples(held: Mapping[Holder, Held]) -> Iterator[AgentSample]:
    """What each holder held and used."""
    for holder, time in held.items():
        labels = (holder.container, holder.namespace, holder.pod, holder.unit, holder.user)
        yield AgentSample(agent_metrics.GPU_SECONDS_HELD, time.gpu_seconds, labels)
        yield AgentSample(agent_metrics.GPU_SECONDS_USED, time.gpu_seconds_used, labels)
        yield AgentSample(agent_metrics.SLICE_SECONDS_HELD, time.slice_seconds, labels)
        yield AgentSample(agent_metrics.SLICE_SECONDS_USED, time.slice_seconds_used, labels)


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
    for report in _taken(gpu):
        for slot in _slots(report, _TAKES):
            began.setdefault(slot, now)
            until.pop(slot, None)
        now += report.seconds
        for slot in _slots(report, _GIVES):
            if slot in began:
                until[slot] = now  # the last of them counts: an instance, then its daemon
    return {slot: until.get(slot, now) - since for slot, since in began.items()}


def _taken(gpu: GpuOutcome) -> Iterator[StepReport]:
    for report in (*gpu.steps, *gpu.restored):
        if report.result is not StepResult.SKIPPED:
            yield report


def _slots(report: StepReport, kinds: tuple[type, ...]) -> range:
    step = report.step
    place: Placement | None = getattr(step, "placement", None) if isinstance(step, kinds) else None
    return range(place.start, place.start + place.size) if place else range(0)


# --- how long GPUs and slices were held and by whom, and how long they were used ---
#
# The time between two observations counts for those who held something when it began, and as used
# to the share that the GPU or slice was active meanwhile. A gap that is too long counts for none.


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose time it is: a pod's, or where there is none a container's (by its id), a systemd
    unit's or a user's (by number). What is not known is empty.
    """

    namespace: str = ""
    pod: str = ""
    container: str = ""
    unit: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """A device that a holder has.

    `gpus` is how much of a GPU the device is (1 for a whole one), `slices` how many memory slices
    it has (0 for a whole GPU), each already divided among those who share it. `active` is the part
    of the time since the last observation in which it worked (0 to 1); None: not known.
    """

    device: str
    holder: Holder
    gpus: float
    slices: float = 0.0
    active: float | None = None


@dataclass(slots=True)
class Held:
    """Seconds: of GPUs and of slices, held and used. `used` is a floor where activity is unknown.

    `last` is when the holder last held something.
    """

    gpu_seconds: float = 0.0
    gpu_seconds_used: float = 0.0
    slice_seconds: float = 0.0
    slice_seconds_used: float = 0.0
    last: float = 0.0


class HeldTime:
    """Adds up, observation by observation.

    Times are seconds of a clock that does not jump. A holder is forgotten `keep` seconds after it
    let go, so that its last values are still scraped; a gap above `longest_gap` does not count.
    """

    def __init__(self, *, longest_gap: float = 60.0, keep: float = 600.0) -> None:
        self._longest_gap = longest_gap
        self._keep = keep
        self._held: dict[Holder, Held] = {}
        self._holds: dict[tuple[str, Holder], Hold] = {}
        self._since: float | None = None

    @property
    def held(self) -> Mapping[Holder, Held]:
        """What each holder has come to."""
        return self._held

    def observe(self, now: float, holds: Iterable[Hold]) -> None:
        """Who holds what at `now`."""
        current = {(hold.device, hold.holder): hold for hold in holds}
        passed = now - self._since if self._since is not None else 0.0
        if 0.0 < passed <= self._longest_gap:
            for key, hold in self._holds.items():
                self._add(hold, passed, current.get(key))
        self._holds, self._since = current, now
        for _, holder in current:
            self._held.setdefault(holder, Held()).last = now
        gone = [holder for holder, held in self._held.items() if now - held.last > self._keep]
        for holder in gone:
            del self._held[holder]

    def _add(self, hold: Hold, passed: float, now: Hold | None) -> None:
        """`now` is the same hold as it is after that time; None when it ended."""
        held = self._held.setdefault(hold.holder, Held())
        active = now.active if now is not None and now.active is not None else 0.0
        used = passed * min(max(active, 0.0), 1.0)
        held.gpu_seconds += passed * hold.gpus
        held.slice_seconds += passed * hold.slices
        held.gpu_seconds_used += used * hold.gpus
        held.slice_seconds_used += used * hold.slices
