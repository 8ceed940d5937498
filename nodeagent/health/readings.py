"""The readings of the GPUs' health; a value that was not read or is not available is None.

A reading may hold anything from one value to all: what it leaves out keeps its last evaluation.
"""

from enum import StrEnum

from nodeagent.health.findings import Key, Moment, Seconds
from nodeagent.plan.observed import Placement
from nodeagent.plan.shares import ComputeMode
from nodeagent.structs import Struct


class Silence(StrEnum):
    """Why the driver gives no answer for a GPU."""

    LOST = "lost"  # GPU_IS_LOST
    RESET_REQUIRED = "resetRequired"  # RESET_REQUIRED
    HANGS = "hangs"  # a call is past its deadline
    FAILS = "fails"  # any other error
    NO_LIBRARY = "noLibrary"  # the driver's library was not found
    NOT_LOADED = "notLoaded"  # the kernel module is not loaded
    UNBOUND = "unbound"  # the kernel driver was taken off the GPU; calls pause


class Answer(Struct, frozen=True):
    """Whether the driver answers for a GPU. `silence` None: it does.

    `last` is the uptime, in seconds, of the last good answer; None when there was none yet.
    """

    silence: Silence | None = None
    last: float | None = None
    reason: str = ""


class RemappedRows(Struct, frozen=True):
    """Rows of memory replaced by spare ones, by the kind of error; from Ampere on."""

    correctable: int
    uncorrectable: int
    pending: bool
    failed: bool


class RetiredPages(Struct, frozen=True):
    """Pages taken out of use, by the kind of error; before Ampere."""

    single_bit: int
    double_bit: int
    pending: bool


class LinkReading(Struct, frozen=True):
    """One link: whether it is up, and its error counts so far."""

    link: int
    up: bool | None = None
    replays: int | None = None
    recoveries: int | None = None
    crc_errors: int | None = None


class Fabric(Struct, frozen=True):
    """NVML's numbers for an NVSwitch fabric: state 0 to 3, a return code, health bits, summary."""

    state: int
    status: int = 0
    health_mask: int = 0
    summary: int = 0


class ModeReading(Struct, frozen=True):
    """A mode that the agent owns, such as `compute mode`: how it is and how it should be."""

    name: str
    found: str
    wanted: str


class InstanceReading(Struct, frozen=True):
    """A GPU instance: its ids, where it lies and its own uncorrected errors (not of memory)."""

    instance: int
    placement: Placement | None = None
    uncorrected: int | None = None


class GpuReading(Struct, frozen=True):
    """One GPU. `answer` None: it was not asked. `instances` None: not known which there are.

    `complete`: everything was asked, so a check without a value cannot be read at present.
    """

    uuid: str
    index: int = 0
    pci_bus_id: str = ""
    complete: bool = False
    answer: Answer | None = None
    mig: bool | None = None
    instances: tuple[InstanceReading, ...] | None = None
    compute_mode: ComputeMode | None = None
    modes: tuple[ModeReading, ...] = ()
    recovery_action: int | None = None
    inforom_corrupt: bool | None = None

    # memory; a pending mode, repair or replacement waits for the next reset
    ecc_uncorrected: int | None = None  # errors since the driver was loaded
    ecc_mode: bool | None = None
    ecc_pending_mode: bool | None = None
    sram_threshold_exceeded: bool | None = None
    rows: RemappedRows | None = None
    banks_without_spare_row: int | None = None
    banks_with_few_spare_rows: int | None = None
    pages: RetiredPages | None = None
    bank_remap_pending: bool | None = None
    memory_unrepairable: bool | None = None
    channel_repair_pending: bool | None = None
    tpc_repair_pending: bool | None = None

    # degrees Celsius; the margin is what is left until the GPU slows down
    temperature: int | None = None
    slowdown_temperature: int | None = None
    temperature_margin: int | None = None
    memory_temperature: int | None = None
    memory_temperature_max: int | None = None

    # NVML's bits of why clocks are lower just now; nanoseconds so far for which they were
    clock_reasons: int | None = None
    held_by_power: int | None = None
    held_by_heat: int | None = None
    held_by_software_heat: int | None = None
    held_by_hardware_heat: int | None = None
    held_by_power_brake: int | None = None

    # milliwatts; millijoules since the driver was loaded, which only a reset turns back
    power: int | None = None
    power_limit: int | None = None
    energy: int | None = None

    # the links; while it is idle, generation and width of PCIe fall and mean nothing
    pcie_replays: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    under_load: bool | None = None
    nvlinks: tuple[LinkReading, ...] = ()
    fabric: Fabric | None = None

    @property
    def silent(self) -> bool:
        """Whether the GPU was asked and does not answer."""
        return self.answer is not None and self.answer.silence is not None


class XidSource(StrEnum):
    """Sources of events."""

    NVML = "nvml"
    KERNEL_LOG = "kernelLog"


class XidEvent(Struct, frozen=True):
    """An XID. Of the GPU one of `gpu` (UUID) and `pci` is known; `at` is uptime in seconds. It may
    have been earlier where `since` is set: it was reported at `at`, and waited for since then.

    `fatal`: what the kernel log says of an NVLink error; `detail` its sub-code. `recovery`: the
    recovery action that XID 154 announces. `sequence`: the record's number in the kernel log, by
    which a second reading of the same log is known; -1 elsewhere.
    """

    xid: int
    at: Seconds
    source: XidSource
    gpu: str = ""
    pci: str = ""
    instance: int | None = None
    compute: int | None = None
    pid: int = 0
    process: str = ""
    message: str = ""
    fatal: bool | None = None
    detail: int | None = None
    recovery: int | None = None
    sequence: int = -1
    since: Seconds | None = None


class GpuEventKind(StrEnum):
    """NVML's other events that mean something for health, by the name of their bit."""

    SINGLE_BIT_STORM = "nvmlEventTypeSingleBitEccErrorStorm"
    DOUBLE_BIT = "nvmlEventTypeDoubleBitEccError"
    RETIREMENT_FAILED = "nvmlEventTypeDramRetirementFailure"
    POISON = "nvmlEventTypeNonFatalPoisonError"
    FATAL_POISON = "nvmlEventTypeFatalPoisonError"
    UNAVAILABLE = "nvmlEventTypeGpuUnavailableError"
    FOREIGN_MIG_CHANGE = "nvmlEventMigConfigChange"  # only when the agent did not cause it


class GpuEvent(Struct, frozen=True):
    """One such event; `at` is uptime in seconds. It may have been earlier, from `since` on."""

    kind: GpuEventKind
    gpu: str
    at: float
    instance: int | None = None
    compute: int | None = None
    since: float | None = None


class NodeReading(Struct, frozen=True):
    """Everything that came in since the last one. `boot_id`: of /proc/sys/kernel/random/boot_id.

    `gpus` are those that were read this time, `known` the UUIDs of all that NVML lists (None: not
    read). `pci_addresses`: NVIDIA's GPUs on the PCI bus, whether NVML lists them or not. `answer`
    is the driver's as a whole, `listener` that of the wait for NVML's events. `resets`: UUIDs of
    the GPUs that the agent reset since. `cleared`: findings that are said to be over.
    """

    at: Moment
    boot_id: str
    gpus: tuple[GpuReading, ...] = ()
    known: frozenset[str] | None = None
    listed_addresses: tuple[str, ...] | None = None
    pci_addresses: tuple[str, ...] | None = None
    answer: Answer | None = None
    listener: Answer | None = None
    xids: tuple[XidEvent, ...] = ()
    events: tuple[GpuEvent, ...] = ()
    resets: frozenset[str] = frozenset()
    cleared: frozenset[Key] = frozenset()
