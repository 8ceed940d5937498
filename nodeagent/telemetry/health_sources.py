"""What health is judged by: samples and NVML's events as readings, XIDs of the kernel log, and the
agent's own MIG changes, whose events are no news.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from nodeagent.gpu.event_listener import Binding, Event
from nodeagent.health import readings
from nodeagent.health.kernel_log import pci_address
from nodeagent.health.state import GpuHistory
from nodeagent.plan.plan import GpuPlan, NodePlan, Verdict
from nodeagent.plan.steps import GpuStep, SetComputeMode, SetTimeSlice, Step
from nodeagent.structs import replace
from nodeagent.telemetry.samples import SampleBatch

_TAKEN_OFF = 1  # nvmlSystemEventTypeGpuDriverUnbind; 2 is the opposite


class HealthReadings:
    """Remembers the GPUs that the kernel driver was taken off.

    `planned` gives the plan in force as the node stands to it, None when there is none.
    """

    def __init__(self, planned: Callable[[], NodePlan | None]) -> None:
        self._planned = planned
        self._unbound: set[str] = set()  # UUIDs

    def round(
        self, reading: readings.NodeReading, found: SampleBatch, on_the_bus: tuple[str, ...] | None
    ) -> readings.NodeReading:
        """The reading with a round of the sampler. `on_the_bus` are the addresses of the GPUs on
        the PCI bus.
        """
        return replace(
            reading,
            gpus=tuple(map(self._gpu, found.gpus)),
            known=found.known,
            listed_addresses=found.addresses,
            pci_addresses=None if found.addresses is None else on_the_bus,
            answer=found.answer,
        )

    def _gpu(self, gpu: readings.GpuReading) -> readings.GpuReading:
        if gpu.uuid in self._unbound and gpu.answer is not None:
            if gpu.answer.silence is None:  # it was bound again, unreported
                self._unbound.discard(gpu.uuid)
            else:
                return replace(gpu, answer=replace(gpu.answer, silence=readings.Silence.UNBOUND))
        plan = self._planned()
        mine = [p for p in plan.gpus if p.before.uuid == gpu.uuid] if plan else []
        if not gpu.complete or not mine:
            return gpu
        return replace(gpu, modes=owned_modes(mine[0], gpu))

    def events(
        self, reading: readings.NodeReading, events: Iterable[Event], gpus: Mapping[str, GpuHistory]
    ) -> readings.NodeReading | None:
        """The reading with events that NVML reported; None where health does not care. `gpus` is
        what is known of them by UUID.
        """
        xids: list[readings.XidEvent] = []
        others: list[readings.GpuEvent] = []
        bound: list[readings.GpuReading] = []
        for event in events:
            if isinstance(event, Binding):
                bound += self._bound(event, gpus)
            elif isinstance(event, readings.XidEvent):
                xids.append(event)
            elif event.gpu:
                others.append(event)
        if not (xids or others or bound):
            return None
        return replace(reading, gpus=tuple(bound), xids=tuple(xids), events=tuple(others))

    def _bound(
        self, event: Binding, gpus: Mapping[str, GpuHistory]
    ) -> Iterable[readings.GpuReading]:
        for uuid, past in gpus.items():
            if _number(past.pci_bus_id) != event.gpu:
                continue
            known = readings.GpuReading(uuid, past.index, past.pci_bus_id)
            if event.kind == _TAKEN_OFF:
                self._unbound.add(uuid)
                answer = readings.Answer(
                    readings.Silence.UNBOUND, event.at, "the kernel driver was taken off it"
                )
            else:
                self._unbound.discard(uuid)
                answer = readings.Answer()  # what it is like now, the next samples show
            yield replace(known, answer=answer)


def owned_modes(plan: GpuPlan, read: readings.GpuReading) -> tuple[readings.ModeReading, ...]:
    """Modes of one GPU that the agent owns, as they were read beside what the plan in force makes
    of them; one that the plan does not name is left out.
    """
    if plan.verdict not in (Verdict.IN_SYNC, Verdict.APPLICABLE):
        return ()
    gpu, found = plan.after, []
    mig = gpu.mig
    if read.mig is not None and mig is not None and mig.current == mig.pending:
        found.append(readings.ModeReading("MIG mode", _word(read.mig), _word(mig.current)))
    divided = mig is not None and mig.current
    # The compute mode is the agent's own as long as it has changed it.
    if read.compute_mode and gpu.compute_mode and gpu.earlier_mode and not divided:
        mode = readings.ModeReading("compute mode", read.compute_mode.value, gpu.compute_mode.value)
        found.append(mode)
    return tuple(found)


def _word(on: bool) -> str:
    return "on" if on else "off"


def _number(address: str) -> int | None:
    """The kernel driver's number for a GPU: its domain, bus and device (gpuGenerate32BitId in
    NVIDIA's open kernel modules).
    """
    parts = pci_address(address)
    if parts is None:
        return None
    domain, bus, device = parts
    return (domain & 0xFFFF) << 16 | bus << 8 | device


_REMEMBERED = 16  # times of work on one GPU; more than fall into a wait for events that hangs
_ECHO = 5.0  # seconds after a step of ours in which NVML may still report what it changed


def _changes_mig(step: Step) -> bool:
    return isinstance(step, GpuStep) and not isinstance(step, SetComputeMode | SetTimeSlice)


class OwnChanges:
    """Remembers when the agent changed which GPU; `uptime` gives the seconds since boot.

    The call of a step that failed may still be in the driver, and its change to come: the GPU is at
    work until it is observed again.
    """

    def __init__(self, uptime: Callable[[], float]) -> None:
        self._uptime = uptime
        self._at_work: dict[str, deque[list[float]]] = {}  # from when to when, by GPU
        self._given_up: set[str] = set()  # GPUs whose last step failed, perhaps for its deadline

    def begin(self, step: Step) -> None:
        if _changes_mig(step):
            now = self._uptime()
            times = self._at_work.setdefault(step.gpu, deque(maxlen=_REMEMBERED))
            if not times or now > times[-1][1] + _ECHO:
                times.append([now, 0.0])
            times[-1][1] = float("inf")  # events of the last step may still be to come
            self._given_up.discard(step.gpu)

    def end(self, step: Step, *, done: bool) -> None:
        if _changes_mig(step) and step.gpu in self._at_work:
            self._given_up.add(step.gpu)
            if done:
                self.observed(step.gpu)

    def observed(self, gpu: str) -> None:
        """Record that it answers, so that no call of a step is in the driver."""
        if gpu in self._given_up:
            self._given_up.remove(gpu)
            self._at_work[gpu][-1][1] = self._uptime()

    def caused(self, event: readings.GpuEvent) -> bool:
        if event.kind is not readings.GpuEventKind.FOREIGN_MIG_CHANGE:
            return False
        since = event.at if event.since is None else event.since
        times = self._at_work.get(event.gpu, ())
        return any(began <= event.at and since <= ended + _ECHO for began, ended in times)
