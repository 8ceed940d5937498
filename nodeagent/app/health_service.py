"""Health in the agent: readings and the kernel log in; findings, Events and fences out.

Everything that is known is one value, `state`: evaluated with each reading, saved when something
that would be missed has changed, and read by every surface. What is unhealthy is fenced: it is
marked in what the planner observes, and MPS daemons accept no new clients there.

Findings that an earlier agent saved count from the start. They end as `docs/health.md` says. By
hand they are ended only through the table of XIDs: findings of an XID that the table in force
names otherwise end when the agent starts.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from nodeagent.documents.xids import xid_table
from nodeagent.errors import NodeagentError
from nodeagent.gpu import kernel
from nodeagent.gpu.event_listener import Event
from nodeagent.gpu.kernel import gpu_addresses
from nodeagent.health import fencing, readings
from nodeagent.health.evaluate import Evaluation, evaluate
from nodeagent.health.fencing import Fences
from nodeagent.health.findings import Moment
from nodeagent.health.reporting import events
from nodeagent.health.state import HealthState
from nodeagent.health.state_file import health_file
from nodeagent.health.xid_findings import cause_of_xid
from nodeagent.health.xids import default_table
from nodeagent.pacing import RateLimit
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.problems import Problem
from nodeagent.plan.steps import ResetGpu, Step
from nodeagent.reconcile.event_log import EventLog, EventType
from nodeagent.reconcile.node_controller import LastObservation
from nodeagent.signals import Signal
from nodeagent.structs import Struct, replace
from nodeagent.telemetry.health_sources import HealthReadings, OwnChanges
from nodeagent.telemetry.kernel_errors import KernelErrors
from nodeagent.telemetry.samples import SampleBatch
from nodeagent.views.health_remedies import HealthRemedies
from nodeagent.views.node_state import NodeState
from nodeagent.waiting import ends_within, uncancelled

log = structlog.get_logger(__name__)

_LOG_LOOKBACK = 600.0  # seconds before the first agent of a boot, of which the kernel log counts
_XID_LOG_INTERVAL = 60.0  # seconds in which an XID that is only counted is logged once
_ADDRESSES_TIMEOUT = (
    15.0  # seconds that the kernel log waits for the GPUs' addresses, which it names
)
_BUS_INTERVAL = 30.0  # seconds between two looks at the PCI bus
_HOLD_TIMEOUT = 300.0  # seconds without calls after an XID after which they may never return
_MIN_SAVE_INTERVAL = 1.0  # seconds between two writes of the state
_MAX_SAVE_INTERVAL = 600.0  # seconds after which the state is written though nothing was found


class HealthPaths(Struct, frozen=True):
    """The paths of the kernel log (None: it is not read), the state (None: it is not kept),
    the user's own classes of XIDs (None: there are none), and the devices on the PCI bus (None:
    they are not looked at).
    """

    kernel_log: Path | None
    state: Path | None
    xids: Path | None = None
    pci_bus: Path | None = None


class HealthService:
    """The health of the node's GPUs, from `load` on, and kept up to date while `run` runs.

    `observation` has the node as it was observed last, and so who uses what; `states` how it stands
    to the plan in force, and so which modes are wanted. `now` gives the moment.
    """

    def __init__(
        self,
        places: HealthPaths,
        events: EventLog,
        *,
        observation: LastObservation,
        states: Signal[NodeState],
        now: Callable[[], Moment] = kernel.now,
        boot_id: Callable[[], str] = kernel.boot_id,
    ) -> None:
        self.state = HealthState()
        # Published when a finding began, changed or ended, or a source can(not) be read.
        self.news: Signal[HealthState] = Signal(self.state)
        self._paths = places
        self._events = events
        self._observation = observation
        self._states = states
        self._readings = HealthReadings(lambda: states.newest.plan)
        self._on_the_bus: tuple[str, ...] | None = None
        self._now = now
        self._read_boot_id = boot_id
        self._boot_id = ""
        self._xids = default_table()
        self.file = health_file(places.state)
        self._kept: object = None  # what was written down last, as far as it is missed
        self._not_kept = ""  # why not, as it was logged
        self._news = asyncio.Event()
        self._addresses_known = asyncio.Event()
        self._log_from = 0.0  # uptime in seconds; what is older in the kernel log does not count
        self._log_limit = RateLimit(_XID_LOG_INTERVAL)
        self._own_changes = OwnChanges(lambda: now().uptime)
        self._kernel_log: KernelErrors | None = None
        if places.kernel_log is not None:
            self._kernel_log = KernelErrors(places.kernel_log, uptime=lambda: now().uptime)
            self._kernel_log.xids.subscribe(
                lambda xids: self._evaluate(replace(self._reading(), xids=xids))
            )
            self._kernel_log.problem.subscribe(lambda _: self.news.publish(self.state))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What cannot be read."""
        problem = self._kernel_log.problem.newest if self._kernel_log else None
        return (problem,) if problem else ()

    async def load(self) -> None:
        """Take up what was known; raises UsageError for a table of XIDs that is not accepted."""
        self._boot_id = await asyncio.to_thread(self._read_boot_id)
        self._xids = await asyncio.to_thread(xid_table, self._paths.xids)
        kept = await asyncio.to_thread(self.file.load)
        if kept is not None:
            self.state = kept
        if self.file.problem:
            log.warning(self.file.problem.message, remedy=self.file.problem.remedy)
        if self.state.boot_id != self._boot_id:
            self._log_from = self._now().uptime - _LOG_LOOKBACK
        self._kept = _missed(self.state)
        if self.state.gpus:
            self._addresses_known.set()
        # Findings of XIDs that the table in force calls otherwise are over.
        renamed = frozenset(
            f.key
            for f in self.state.findings
            if f.check == "xid" and f.cause != cause_of_xid(self._xids.row(f.code))
        )
        # Quietly: the subscribers look at everything first anyway.
        self._evaluate(replace(self._reading(), cleared=renamed), quietly=True)

    async def run(self) -> None:
        following = (
            asyncio.create_task(self._follow_kernel_log(), name="kernel log"),
            asyncio.create_task(self._follow_bus(), name="PCI bus"),
        )
        try:
            while True:
                await ends_within(_MAX_SAVE_INTERVAL, self._news.wait())
                self._news.clear()
                await self._keep()
                await asyncio.sleep(_MIN_SAVE_INTERVAL)
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            await self._keep()

    # --- what comes in --------------------------------------------------------------------------

    def take_samples(self, found: SampleBatch) -> None:
        self.take(self._readings.round(self._reading(), found, self._on_the_bus))

    def take_events(self, events: tuple[Event, ...]) -> None:
        reading = self._readings.events(self._reading(), events, self.state.gpus)
        if reading is not None:
            self.take(reading)

    def take_listener(self, answer: readings.Answer) -> None:
        self.take(replace(self._reading(), listener=answer))

    def take(self, reading: readings.NodeReading) -> None:
        """Judge what was read, just now. Takes milliseconds."""
        foreign = tuple(event for event in reading.events if not self._own_changes.caused(event))
        self._evaluate(replace(reading, events=foreign))

    def observed_node(self, observed: ObservedNode) -> None:
        """The node was observed: which GPUs there are, where they are, and their instances."""
        gpus = tuple(
            readings.GpuReading(
                gpu.uuid,
                gpu.index,
                gpu.pci_bus_id,
                mig=gpu.in_mig_mode,
                instances=tuple(readings.InstanceReading(i.id, i.placement) for i in gpu.instances),
            )
            for gpu in observed.gpus
            if gpu.answers and gpu.uuid
        )
        for gpu in gpus:
            self._own_changes.observed(gpu.uuid)
        if gpus:
            self._evaluate(replace(self._reading(), gpus=gpus))
            self._addresses_known.set()

    def _reading(self) -> readings.NodeReading:
        """A reading of this moment in which nothing came in."""
        return readings.NodeReading(self._now(), self._boot_id)

    # --- what the agent itself does ---------------------------------------------------------------

    def begin_step(self, step: Step) -> None:
        """Note that a step begins; the events that NVML reports of it are expected."""
        self._own_changes.begin(step)

    def end_step(self, step: Step, *, done: bool) -> None:
        """Note that a step succeeded or failed. A reset ends the findings that it mends."""
        self._own_changes.end(step, done=done)
        if isinstance(step, ResetGpu) and done:
            self._evaluate(replace(self._reading(), resets=frozenset({step.gpu})))

    # --- what is made of it -----------------------------------------------------------------------

    def fenced(self, observed: ObservedNode) -> tuple[ObservedNode, Mapping[str, str]]:
        """What was observed, with the unhealthy devices marked, and the devices that accept no new
        clients, each with the reason.
        """
        fences = self.fences(observed)
        marked = fencing.as_fenced(observed, fences, self._remedies(observed).of_finding)
        return marked, fences.reasons

    def fences(self, observed: ObservedNode) -> Fences:
        return fencing.fences(self.state.findings, observed)

    @property
    def held(self) -> frozenset[str]:
        """GPUs, by UUID, of which nothing should be asked now: calls may never return. They are
        asked again after a while, since only that shows that they were reset, or bound while
        no events arrived.
        """
        since = self._now().uptime - _HOLD_TIMEOUT
        recent = (f for f in self.state.findings if f.last.uptime >= since)
        return fencing.held_calls(recent)

    def _evaluate(self, reading: readings.NodeReading, *, quietly: bool = False) -> None:
        observed = self._observation.node or ObservedNode()
        evaluation = evaluate(self.state, reading, self._xids, observed)
        first_read = _read_gpus(evaluation.state) != _read_gpus(self.state)
        self.state = evaluation.state
        self._report(evaluation, observed)
        news = evaluation.raised or evaluation.changed or evaluation.ended or first_read
        if news and not quietly:
            self.news.publish(self.state)
        if _missed(self.state) != self._kept:
            self._news.set()

    def _remedies(self, observed: ObservedNode) -> HealthRemedies:
        state = self._states.newest
        return HealthRemedies(state.node, state.runs_as, observed)

    def _report(self, evaluation: Evaluation, observed: ObservedNode) -> None:
        now, due = self._now().uptime, self._log_limit.due
        # A storm of one kind is counted, but logged once a minute.
        fresh = replace(
            evaluation, xids=tuple(x for x in evaluation.xids if due((x.gpu, x.xid), now))
        )
        for xid in fresh.xids:
            log.warning("XID", xid=xid.xid, **self._where(xid), source=xid.source.value)
        for event in events(fresh, self._xids, self._remedies(observed).of_finding):
            hit = f" It hit {', '.join(event.pods)}." if event.pods else ""
            self._events.add(EventType(event.reason), f"{event.message}{hit}", gpu=event.gpu)

    def _where(self, event: readings.XidEvent) -> dict[str, str]:
        """The GPU's UUID and PCI address. A source gives one of them, the readings the other."""
        past = self.state.gpus.get(event.gpu)
        where = {"gpu": event.gpu, "pci": past.pci_bus_id if past else event.pci}
        return {key: text for key, text in where.items() if text}

    # --- the kernel log and the PCI bus -------------------------------------------------------

    async def _follow_kernel_log(self) -> None:
        """Read it once the addresses of GPUs are known, by which its lines name them."""
        if self._kernel_log is None:
            return
        await ends_within(_ADDRESSES_TIMEOUT, self._addresses_known.wait())
        await self._kernel_log.run(since=self._log_from)

    async def _follow_bus(self) -> None:
        while self._paths.pci_bus is not None:
            self._on_the_bus = await asyncio.to_thread(gpu_addresses, self._paths.pci_bus)
            await asyncio.sleep(_BUS_INTERVAL)

    # --- what is kept -----------------------------------------------------------------------------

    async def _keep(self) -> None:
        """A write that was begun is not left half-way: its thread would go on, and might be the
        last to write although what it writes is older.
        """
        state = self.state
        try:
            await uncancelled(asyncio.to_thread(self.file.save, state))
        except NodeagentError as error:
            if error.message != self._not_kept:  # it is tried again and again
                log.warning(error.message, remedy=error.remedy)
            self._not_kept = error.message
        else:
            self._kept, self._not_kept = _missed(state), ""


def _read_gpus(state: HealthState) -> frozenset[str]:
    """The GPUs of which a check has read anything; the others are not called healthy."""
    return frozenset(uuid for uuid, past in state.gpus.items() if past.checked)


def _missed(state: HealthState) -> object:
    """What would be missed of a state that was not kept; trails of counters begin anew soon."""
    findings = tuple((f.key, f.severity, f.action, f.place, f.pods) for f in state.findings)
    return (state.boot_id, findings, state.xids, state.repairs, state.kernel_log_read)
