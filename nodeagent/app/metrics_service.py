"""Metrics as a part of the agent: what was read becomes the text that is scraped.

A scrape calls nothing: it renders what was read last, once, and adds the age of what each reader
read. So a driver that hangs holds up no scrape.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from nodeagent import __version__
from nodeagent.api.limits import Refusals, RequestLimits
from nodeagent.app.paths import Simulation
from nodeagent.app.use_service import ListWorkloads, UseService
from nodeagent.cluster.kubelet.processes import Owner, ProcessOwners, ProcessPods
from nodeagent.errors import NodeagentError
from nodeagent.files.watch import changes
from nodeagent.metrics.agent_metrics import AgentSample
from nodeagent.metrics.catalogue import catalogue
from nodeagent.metrics.selection import default_selection, read_selection
from nodeagent.plan.problems import Code, Problem
from nodeagent.settings import Settings
from nodeagent.structs import replace
from nodeagent.telemetry.accounting import READING_FIELDS
from nodeagent.telemetry.counters_file import counters_text
from nodeagent.telemetry.event_values import EventValues
from nodeagent.telemetry.exporter import Exporter
from nodeagent.telemetry.history import GpuHistories
from nodeagent.telemetry.process_reader import process_samples
from nodeagent.telemetry.samples import ProcessSample, SampleBatch
from nodeagent.telemetry.sampling_service import SamplingService
from nodeagent.views.node_state import NodeState
from nodeagent.views.status_report import utilization

if TYPE_CHECKING:
    from nodeagent.api.answers import Answers

log = structlog.get_logger(__name__)

OwnersOf = Callable[[Collection[int]], Mapping[int, Owner]]

_MAX_NAMED = 20  # lines of a file of counters that are named one by one
_FIRST_OWNERS = 30.0  # seconds at most for the first look-up of who the processes are


class MetricsService:
    """Renders what `sampling` reads, and has it read while `run` runs; can be scraped from the
    start.

    `current` gives the node's state as it is at this moment. `owners` looks up the pods of
    processes by pid, and may block; None: pods of processes are not known. `use_file` is where the
    records of use outlive the agent; None: they do not. `workloads`: as UseService has it.
    """

    def __init__(
        self,
        settings: Settings,
        sampling: SamplingService,
        *,
        current: Callable[[], NodeState],
        owners: OwnersOf | None = None,
        use_file: Path | None = None,
        workloads: ListWorkloads | None = None,
    ) -> None:
        self._settings = settings.metrics
        self._current = current
        self._selection = default_selection()
        self.refusals = Refusals()
        self._counters_problem: Problem | None = None
        self._listener_problem: Problem | None = None
        host = settings.metrics.host_label
        self.exporter = Exporter(
            self._selection,
            host=() if host == "none" else ((host, settings.node_name),),
            renamed=settings.metrics.names == "renamed",
            repeat_whole=settings.metrics.repeat_whole,
            build=AgentSample("nodeagent_build_info", 1, (__version__, platform.python_version())),
            clock=asyncio.get_running_loop().time,
            current=current,
        )
        self.use = UseService(use_file, self.exporter.accounts, settings.state.use_days, workloads)
        self.history = GpuHistories(settings.sample.interval)
        self._event_values = EventValues()
        self._sampling = sampling
        sampling.samples.subscribe(self._render)
        sampling.processes.subscribe(self._count_processes)
        sampling.events.subscribe(self._event_values.update)
        self._owners = owners
        if owners is not None:  # before, who held something would seem to have let go
            self.exporter.owners_due = asyncio.get_running_loop().time() + _FIRST_OWNERS
        self._looking_up: asyncio.Task[None] | None = None

    def scrape(self, zipped: bool) -> bytes:
        """The text, compressed by gzip if so wished. Calls nothing that could take long."""
        return self.exporter.scrape(zipped, process_samples(), self.refusals.counts)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with the file of counters, and with the metrics' own listener."""
        found = [problem for problem in (self._counters_problem, self._listener_problem) if problem]
        lines = (
            Problem.of(Code.METRICS, finding=finding)
            for finding in self._selection.findings[:_MAX_NAMED]
        )
        return (*found, *lines)

    async def listen(self, answers: Answers, limits: RequestLimits) -> None:
        """Serve the metrics on an address of their own, if there is one, until cancelled."""
        address = self._settings.listen
        if address is None:
            await asyncio.Event().wait()
            return
        from nodeagent.api.metrics_listener import MetricsListener

        await MetricsListener(
            answers,
            host=address.host,
            port=address.port,
            web_config=self._settings.web_config,
            report=self._report_listener,
            refusals=self.refusals,
            limits=limits,
        ).run()

    def _report_listener(self, error: NodeagentError | None) -> None:
        if error:
            self._listener_problem = Problem.from_error(Code.METRICS, error)
            log.error(error.message, remedy=error.remedy)
        elif self._listener_problem:
            self._listener_problem = None
            log.info("metrics are served on metrics.listen")

    async def run(self) -> None:
        await self.use.load()
        path = self._settings.counters
        if path is not None:
            await self._load_selection(path)
        self._select_fields()
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self._sampling.run(), name="sampling")
            parts.create_task(self.use.run(), name="records of use")
            if path is not None:
                parts.create_task(self._follow(path), name="file of counters")

    async def _follow(self, path: Path) -> None:
        async for _ in changes(path):
            before = self._selection
            await self._load_selection(path)
            if self._selection != before:
                self._select_fields()

    async def _load_selection(self, path: Path) -> None:
        """Export what the file selects; one that cannot be used leaves what was in force."""
        try:
            found = await asyncio.to_thread(lambda: read_selection(counters_text(path)))
        except NodeagentError as error:
            problem = Problem.from_error(Code.METRICS, error)
            if problem != self._counters_problem:
                log.warning("the earlier fields are exported", error=error.message)
            self._counters_problem = problem
            return
        self._counters_problem = None
        if found != self._selection:
            for finding in found.findings[:_MAX_NAMED]:
                log.warning("a line of the counters file is ignored", why=str(finding))
            log.info("fields to export", metrics=len(found.metrics), labels=len(found.labels))
        self._selection = found
        self.exporter.select(found)

    def _select_fields(self) -> None:
        """Have the selected fields read, and those that the status shows."""
        wanted = {row.id for row in self._selection.fields} | set(READING_FIELDS)
        fields = [row for row in catalogue().fields if row.id in wanted]
        self._sampling.select(fields, self._selection.texts)

    def _render(self, found: SampleBatch) -> None:
        state, now = self._current(), asyncio.get_running_loop().time()
        health = state.health
        # With XIDs of lost GPUs: that a GPU fell off the bus is one of them.
        found.samples["events"] = self._event_values.sample(
            health.xids if health else (),
            self._sampling.sampler.whole_subjects,
            found.slices,
            [sample.whole for sample in found.latest],
        )
        wanted = [row for row in self._selection.fields if row in catalogue().composed]
        if health and wanted:
            wholes = self._sampling.sampler.whole_subjects
            values = self._event_values.composed(wanted, found, health, wholes, now)
            found.samples["composed"] = values
        found.readers = (*found.readers, self._sampling.events_reader)
        self.exporter.take(found)
        # A GPU that is lost or busy keeps its last readings, which are none of now.
        answering = {gpu.uuid for gpu in found.gpus if gpu.answer and gpu.answer.silence is None}
        readings = self.exporter.readings
        read = {
            gpu.uuid: replace(readings[gpu.uuid, None], utilization=utilization(gpu, readings))
            for gpu in state.observed.gpus
            if gpu.uuid in answering and (gpu.uuid, None) in readings
        }
        self.history.add(now, read)

    def _count_processes(self, samples: tuple[ProcessSample, ...]) -> None:
        for sample in samples:
            self.exporter.put_processes(sample.gpu, sample.running)
        if self._owners is not None and self._looking_up is None:
            looking_up = self._look_up(self._owners)
            self._looking_up = asyncio.create_task(looking_up, name="look up processes")

    async def _look_up(self, owners: OwnersOf) -> None:
        try:
            pids = self.exporter.unknown_pids()
            self.exporter.put_owners(await asyncio.to_thread(owners, pids))
        except Exception:  # a fault of ours; the next list may go well
            log.exception("the owners of processes cannot be read")
        finally:
            self._looking_up = None


def owners_of(simulation: Simulation | None) -> OwnersOf:
    """Make the look-up of owners; on a simulated node only for real processes."""
    if simulation is None:
        return ProcessOwners(ProcessPods()).of
    owners = ProcessOwners(ProcessPods(own_pids=True))
    return lambda pids: owners.of(simulation.real_pids() & frozenset(pids))
