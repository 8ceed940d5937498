"""Builds the agent's parts from its settings, runs them together, and takes them down in order.

The reconciler comes first: the node's GPUs do not wait for the API to be imported. At SIGTERM the
running steps finish and the rest is left to the next start; a second signal ends the process.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

import structlog

from nodeagent.app.api_adapter import Answering
from nodeagent.app.cluster_service import ClusterPart
from nodeagent.app.health_service import HealthPart, HealthPlaces
from nodeagent.app.logs import configure_logging
from nodeagent.app.metrics_service import MetricsPart, OwnersOf
from nodeagent.app.mps_service import MpsPart
from nodeagent.app.own_files import OwnFiles, until_gone
from nodeagent.app.paths import Places, Simulation
from nodeagent.app.plan_service import PlanPart, SettingsFile, source_of
from nodeagent.app.sd_notify import Notifier
from nodeagent.backoff import Backoff
from nodeagent.cluster.client.presence import is_in_cluster
from nodeagent.cluster.kubelet.device_users import kubelet_users
from nodeagent.cluster.kubelet.processes import ProcessOwners, ProcessPods
from nodeagent.errors import NodeagentError
from nodeagent.execute.writer_lock import WriterLock
from nodeagent.files.watch import changes
from nodeagent.gpu.capability_files import UsageProbe
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.kernel import PCI_DEVICES as PCI_BUS
from nodeagent.gpu.topology import Topology
from nodeagent.gpu.workers import LONGEST_JOB
from nodeagent.health.store import FILE_NAME as HEALTH_NAME
from nodeagent.mps.setup import longest_step, places_of, simulated_places
from nodeagent.plan.problems import Problem
from nodeagent.reconcile.event_log import EventLog, EventType
from nodeagent.reconcile.event_reporter import Narrator
from nodeagent.reconcile.last_good_plan import FILE_NAME as PLAN_NAME
from nodeagent.reconcile.last_good_plan import last_good_plan
from nodeagent.reconcile.loop_control import Heartbeats
from nodeagent.reconcile.reconciler import Reconciler, Rules
from nodeagent.settings import Settings
from nodeagent.views.headline import headline
from nodeagent.views.node_state import NodeState

if TYPE_CHECKING:  # the API takes long to import
    from nodeagent.api.answers import Answers

log = structlog.get_logger(__name__)

_FIRST_RETRY, _LONGEST_RETRY = 1.0, 300.0  # seconds between attempts at what failed
_MARGIN = 30.0  # seconds beyond all deadlines after which a loop counts as stuck
_API_WAITS = 1.0  # seconds that the API leaves to the first reconciliation
_READY_ANYWAY = 10.0  # seconds after which systemd hears READY although the driver hangs
_SOCKET_AGAIN = 1.0  # seconds between attempts to make a socket that was deleted
_BEAT = 5.0  # seconds between signs of life to systemd, unless it wants them more often


def run(
    settings: Settings,
    *,
    settings_file: SettingsFile | None = None,
    simulation: Simulation | None = None,
) -> None:
    """Run the agent until a signal ends it; raises NodeagentError when it cannot go on.

    With `settings_file` a change of the plan's source there acts at once.
    """
    notifier = Notifier.take_from(os.environ)
    configure_logging(form=settings.log.format, level=settings.log.level)
    places = Places(settings, simulation)
    places.make_state_directory()
    lock = places.writer_lock()
    try:
        if lock:
            lock.take()
        asyncio.run(Agent(settings, settings_file, simulation, notifier, lock).run())
    except BaseExceptionGroup as group:
        raise _first_of(group) from None
    finally:
        if lock:
            lock.release()


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What ended the agent: the first failure, since the other tasks are cancelled for it."""
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


class Agent:
    """The parts of one agent. Made and run inside an event loop, once."""

    def __init__(
        self,
        settings: Settings,
        settings_file: SettingsFile | None,
        simulation: Simulation | None,
        notifier: Notifier,
        lock: WriterLock | None,
    ) -> None:
        self._settings = settings
        self._lock = lock
        self._settings_file = settings_file
        self._in_cluster = is_in_cluster(
            use=settings.kubernetes.use,
            kubeconfig=settings.kubernetes.kubeconfig,
            environment=os.environ,
        )
        self._source = source_of(settings.plan, in_cluster=self._in_cluster)
        self._simulation = simulation
        self._places = Places(settings, simulation)
        self._notifier = notifier
        self._policy = settings.policy
        self._events = EventLog()
        self._stopping = asyncio.Event()  # a signal came, be it before there are parts
        # One for life: a driver that hangs is not called again and again in new threads.
        self._kubelet = kubelet_users(
            settings.kubelet, in_cluster=self._in_cluster, simulated=simulation is not None
        )
        self._driver = self._make_driver()

    async def run(self) -> None:
        """Run until a signal; raises the first failure of a part, alone or in a group."""
        with self._stopped_by_signals():
            await self._run_parts()

    async def _run_parts(self) -> None:
        self._hearts = Heartbeats(asyncio.get_running_loop().time)
        self._health = self._make_health()
        self._mps = self._make_mps()
        await self._health.load()
        self._cluster = self._make_cluster()
        self._metrics = self._make_metrics()
        self._last_good = last_good_plan(self._places.kept(PLAN_NAME))
        self._own_files = OwnFiles(
            self._places,
            self._lock,
            (self._health.file, self._last_good, self._mps.memory_file),
            changed=lambda: self._reconciler.nudge("the agent's own files changed"),
            repaired=self._mps.node.publish,
        )
        self._reconciler = self._make_reconciler()
        self._plan = PlanPart(
            self._settings, self._settings_file, self._reconciler, self._cluster, self._hearts
        )
        self._events.add(EventType.STARTED, f"the agent of {self._settings.node_name} started")
        if self._stopping.is_set():
            return
        # What an earlier agent left running has to be known before anything is planned.
        async with self._mps.running(), asyncio.TaskGroup() as parts:
            others = [
                parts.create_task(part(), name=part.__name__.strip("_"))
                for part in (
                    self._serve_api,
                    self._beat,
                    self._follow_simulated,
                    self._request_stop,
                )
            ]
            others.append(parts.create_task(self._plan.run(), name="plan"))
            others.append(parts.create_task(self._health.run(), name="health"))
            others.append(parts.create_task(self._metrics.run(), name="metrics"))
            others.append(parts.create_task(self._own_files.run(), name="own files"))
            if self._cluster:
                others.append(parts.create_task(self._cluster.run(), name="cluster"))
            await parts.create_task(self._reconciler.run(), name="reconcile")
            if self._cluster:
                await self._cluster.flush()
            self._events.close()
            for task in others:
                task.cancel()

    # --- the parts ----------------------------------------------------------------------------

    def _make_reconciler(self) -> Reconciler:
        settings = self._settings
        longest = max(settings.driver.step_deadline, longest_step(settings.mps))
        # A look may take several deadlines of one call each; that is no hang.
        deadlines = longest + (3 + LONGEST_JOB) * settings.driver.observe_deadline
        return Reconciler(
            state=NodeState(settings.node_name, self._source),
            open_driver=lambda: self._mps.node,
            rules=Rules(
                policy=self._policy,
                parallel=settings.gpu.parallel,
                resync=settings.resync.interval,
                patience=deadlines + _MARGIN,
                mend=settings.drift == "mend",
            ),
            backoff=Backoff(
                _FIRST_RETRY, _LONGEST_RETRY, spread=0.25, jitter=random.SystemRandom().random
            ),
            last_good=self._last_good,
            narrator=Narrator(self._events),
            hearts=self._hearts,
            on_state=self._tell,
            host_for=self._mps.host_for,
            mps=self._mps.overview,
            on_plan=self._mps.plan_accepted,
            hooks=self._cluster.hooks if self._cluster else None,
            on_round=self._metrics.round_over,
            own_problems=self._own_problems,
        )

    def _own_problems(self) -> tuple[Problem, ...]:
        """What is wrong with the agent's files, and what it cannot read."""
        readers = (*self._health.problems, *self._metrics.sampling.problems)
        return (*self._own_files.problems, *readers)

    def _make_cluster(self) -> ClusterPart | None:
        if not self._in_cluster:
            return None
        return ClusterPart(
            self._settings,
            self._policy,
            self._events,
            source=self._source,
            offer=lambda offer: self._reconciler.offer(offer),  # noqa: PLW0108 - as below
            nudge=lambda reason: self._reconciler.nudge(reason),  # noqa: PLW0108 - as below
            rounds=lambda: self._reconciler.state.rounds,
            kubelet=self._kubelet,
        )

    def _make_mps(self) -> MpsPart:
        settings, simulation = self._settings, self._simulation
        places = (
            simulated_places(settings, simulation.directory) if simulation else places_of(settings)
        )
        return MpsPart(
            settings.mps,
            places,
            self._driver,
            self._events,
            lambda reason: self._reconciler.nudge(reason),  # noqa: PLW0108 - there is none yet
            health=self._health,
            throwaway=simulation is not None and simulation.throwaway,
        )

    def _make_driver(self) -> Driver:
        settings = self._settings
        simulation = self._simulation
        return Driver(
            observe_deadline=settings.driver.observe_deadline,
            step_deadline=settings.driver.step_deadline,
            usage=None if simulation else UsageProbe(),
            allocations=self._kubelet,
            topology=Topology(),
            nvidia_smi=simulation.nvidia_smi if simulation else settings.nvidia_smi,
        )

    def _make_health(self) -> HealthPart:
        settings, kernel_log = self._settings.health, self._settings.health.kernel_log
        named = "kernel_log" in settings.given
        places = HealthPlaces(
            kernel_log=None if self._simulation and not named else kernel_log,
            state=self._places.kept(HEALTH_NAME),
            xids=settings.xids,
            pci_bus=None if self._simulation else PCI_BUS,
        )
        return HealthPart(
            places,
            self._events,
            seen=lambda: self._mps.node.seen,
            planned=lambda: self._reconciler.state.plan,
            changed=self._health_changed,
        )

    def _make_metrics(self) -> MetricsPart:
        return MetricsPart(
            self._settings,
            self._driver,
            current=lambda: replace(
                self._reconciler.state,
                mps=self._mps.overview().daemons,
                health=self._health.state,
            ),
            begin=lambda: self._reconciler.settled.wait(),  # noqa: PLW0108 - there is none yet
            on_round=(self._health.took,),
            on_events=(self._health.heard,),
            on_listener=self._health.listener_is,
            on_problems=lambda: self._reconciler.nudge("a reader failed or reads again"),
            held=lambda: self._health.held,
            owners=self._owners_of(),
        )

    def _owners_of(self) -> OwnersOf:
        """On a simulated node only of processes that are some of this machine."""
        simulation = self._simulation
        if simulation is None:
            return ProcessOwners(ProcessPods()).of
        owners = ProcessOwners(ProcessPods(own_pids=True))
        return lambda pids: owners.of(simulation.real_pids() & frozenset(pids))

    async def _follow_simulated(self) -> None:
        """Processes of a simulated node are no processes: its file tells when they go."""
        if self._simulation and self._simulation.state:
            async for _ in changes(self._simulation.state):
                self._reconciler.nudge("the simulated node changed")

    async def _beat(self) -> None:
        if self._notifier.watchdog is None:
            return
        while True:
            if not self._hearts.overdue():
                self._notifier.alive()
            await asyncio.sleep(min(self._notifier.watchdog / 3, _BEAT))

    async def _serve_api(self) -> None:
        await self._settled_within(_API_WAITS)
        # aiohttp takes long to import; in a thread, so that the reconciler goes on meanwhile.
        api = await asyncio.to_thread(_import_api)
        address = self._settings.api.listen
        answering = Answering(
            self._reconciler,
            self._mps,
            health=self._health,
            metrics=self._metrics,
            cluster=self._cluster,
            policy=self._policy,
        )
        answers = answering.answers(self._events, not_alive=self._hearts.overdue)
        listening = api.listen(answers, address.host, address.port, self._metrics.refusals)
        async with listening as port, asyncio.TaskGroup() as group:
            listens = asyncio.Event()
            group.create_task(self._serve_socket(api, answers, listens), name="socket")
            await listens.wait()
            name = address.host or "127.0.0.1"
            shown = f"[{name}]" if ":" in name else name
            log.info("the node can be seen", url=f"http://{shown}:{port}/")
            await self._settled_within(_READY_ANYWAY)
            self._notifier.ready()
            # What is there now stays: to look through it for garbage every minute or so would take
            # 50 ms, in which nobody is answered.
            gc.freeze()
            await self._metrics.listen(answers)

    async def _serve_socket(
        self, api: ModuleType, answers: Answers, listens: asyncio.Event
    ) -> None:
        """Serve the Unix socket, and a new one when it was deleted; sets `listens` at first."""
        path = await asyncio.to_thread(self._places.socket, api.SOCKET_NAME)
        while path:
            try:
                async with api.listen_on_socket(answers, path, self._metrics.refusals):
                    listens.set()
                    await until_gone(path)
                    self._own_files.lost(path)
            except NodeagentError:  # later the problem of the run directory says why
                if not listens.is_set():
                    raise
                await asyncio.sleep(_SOCKET_AGAIN)
        listens.set()

    async def _settled_within(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._reconciler.settled.wait()

    # --- systemd and signals ------------------------------------------------------------------

    def _health_changed(self) -> None:
        """MPS daemons and the cluster hear of it at once, plans with the next look."""
        self._mps.node.fence()
        self._reconciler.nudge("health changed")
        self._tell(self._reconciler.state)

    def _tell(self, state: NodeState) -> None:
        with_health = replace(state, health=self._health.state)
        if self._cluster:
            self._cluster.publish(with_health, self._reconciler.offered)
        self._metrics.changed()
        found = headline(with_health, in_cluster=self._cluster is not None)
        self._notifier.status(f"{state.phase}: {found.text}")

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self._stop, number, numbers)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # the program's start blocks them
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    async def _request_stop(self) -> None:
        await self._stopping.wait()
        self._reconciler.request_stop()

    def _stop(self, received: signal.Signals, numbers: tuple[signal.Signals, ...]) -> None:
        log.info("stopping; the running steps finish", signal=received.name)
        self._events.add(EventType.STOPPING, "the agent stops; the running steps finish")
        self._notifier.stopping()
        self._stopping.set()
        loop = asyncio.get_running_loop()
        for number in numbers:
            # Whoever asks a second time does not want to wait.
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)


def _import_api() -> ModuleType:
    from nodeagent.api import listening

    return listening
