"""What the readers found, and what a round of the sampler delivers."""

from collections.abc import Mapping

from nodeagent.health.readings import Answer, GpuReading
from nodeagent.metrics.agent_samples import ReaderState
from nodeagent.metrics.catalogue import Tier
from nodeagent.metrics.samples import GpuIdentity, SampleSet, Subject
from nodeagent.structs import Struct, field


class GpuSample(Struct, frozen=True):
    """One sample of a GPU: its instances, values by tier, and health.

    `at` (monotonic) and `seconds` say when the reading ended and how long it took. `problems` are
    failures of calls that the GPU supports. `whole` is the GPU itself, `slices` its instances.
    """

    gpu: GpuIdentity
    whole: Subject
    at: float
    health: GpuReading
    seconds: float = 0.0
    slices: tuple[Subject, ...] = ()
    samples: Mapping[Tier, SampleSet] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


class NodeSample(Struct, frozen=True):
    """One sample of the node, with the `count` of its GPUs; the times are as in GpuSample."""

    at: float
    seconds: float
    count: int
    sample: SampleSet
    problems: tuple[str, ...]


class ProcessReading(Struct, frozen=True):
    """A process on a device.

    `memory` in bytes, `multiprocessors` in percent of the GPU's time; None: not known.
    """

    pid: int
    memory: int | None = None
    multiprocessors: float | None = None


class ProcessSample(Struct, frozen=True):
    """The processes on a GPU, by the id of the GPU instance; None for those outside any."""

    gpu: str
    running: Mapping[int | None, tuple[ProcessReading, ...]] = field(default_factory=dict)


class SampleBatch(Struct):
    """Everything that came in since the last round.

    `samples` are the new ones by reader; `gone` are readers whose values count no more.
    `problems` are calls that failed, by UUID, `gpus` health readings of the GPUs that were read.
    `known` and `addresses` are the UUIDs and PCI addresses of all GPUs, `answer` the driver's own;
    None where the node was not read now. `latest` is the last sample of each GPU that is not lost.
    """

    samples: dict[str, SampleSet] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    problems: dict[str, tuple[str, ...]] = field(default_factory=dict)
    gpus: list[GpuReading] = field(default_factory=list)
    known: frozenset[str] | None = None
    addresses: tuple[str, ...] | None = None
    answer: Answer | None = None
    latest: tuple[GpuSample, ...] = ()
    readers: tuple[ReaderState, ...] = ()

    @property
    def slices(self) -> Mapping[str, tuple[Subject, ...]]:
        """The instances there are now, by the UUID of their GPU."""
        return {sample.gpu.uuid: sample.slices for sample in self.latest if sample.slices}
