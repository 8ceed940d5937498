"""Builds the agent's services from its settings, runs them together, and stops them in order.

The reconciler comes first: the node's GPUs do not wait for the API to be imported.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from nodeagent.app.api_adapter import ApiAdapter
from nodeagent.app.cluster_service import ClusterService
from nodeagent.app.driver import make_driver
from nodeagent.app.health_service import HealthPaths, HealthService
from nodeagent.app.kept_claims import KeptClaims
from nodeagent.app.metrics_service import MetricsService, owners_of
from nodeagent.app.mps_service import MpsService
from nodeagent.app.paths import OwnFiles, Paths
from nodeagent.app.plan_service import PlanService, SettingsFile, source_of
from nodeagent.app.sd_notify import Notifier
from nodeagent.backoff import Backoff
from nodeagent.cluster.client.presence import is_in_cluster
from nodeagent.execute.node_reader import LastObservation
from nodeagent.execute.writer_lock import WriterLock
from nodeagent.files.watch import changes
from nodeagent.gpu.kernel import PCI_DEVICES as PCI_BUS
from nodeagent.gpu.original_settings import OriginalSettings
from nodeagent.gpu.pool import GpuPool
from nodeagent.gpu.topology import Topology
from nodeagent.gpu.workers import LONGEST_JOB
from nodeagent.health.state_file import FILE_NAME as HEALTH_NAME
from nodeagent.mps.setup import longest_step, places_of
from nodeagent.plan.problems import Problem
from nodeagent.reconcile.active_plan import ActivePlan
from nodeagent.reconcile.change_hooks import ChangeHooks
from nodeagent.reconcile.event_log import EventLog, EventType
from nodeagent.reconcile.event_reporter import EventReporter
from nodeagent.reconcile.gpu_changes import GpuChanges
from nodeagent.reconcile.last_good_plan import FILE_NAME as PLAN_NAME
from nodeagent.reconcile.last_good_plan import last_good_plan
from nodeagent.reconcile.loop_control import Heartbeats, LoopControl, NodeStates
from nodeagent.reconcile.reconciler import Reconciler, Rules
from nodeagent.settings import Settings
from nodeagent.structs import replace
from nodeagent.telemetry.sampling_service import SamplingService
from nodeagent.views.headline import headline
from nodeagent.views.node_state import NodeState

if TYPE_CHECKING:
    from nodeagent.app.claims_service import ClaimsService

_FIRST_RETRY, _LONGEST_RETRY = 1.0, 300.0  # seconds between attempts at what failed
_MARGIN = 30.0  # seconds beyond all deadlines after which a loop counts as stuck


class Agent:
    """The services of one agent, built top-down: each gets what it needs when it is made.

    Made and run inside an event loop, once.
    """

    def __init__(
        self,
        settings: Settings,
        settings_file: SettingsFile | None,
        places: Paths,
        notifier: Notifier,
        lock: WriterLock | None,
        *,
        on_ready: Callable[[], None],
    ) -> None:
        in_cluster = is_in_cluster(settings.kubernetes)
        source = source_of(settings.plan, in_cluster=in_cluster)
        simulation = places.simulation
        self._node_name = settings.node_name
        self._without_effect = settings.dra.without_effect(in_cluster=in_cluster)
        self._simulation = simulation
        self._notifier = notifier
        self._on_ready = on_ready
        # What the services share.
        self._events = EventLog()
        self._control = LoopControl()
        self._states = NodeStates(NodeState(settings.node_name, source))
        self._hearts = Heartbeats(asyncio.get_running_loop().time)
        observation = LastObservation()
        # The cluster, then from the hardware up: the driver, health, MPS, metrics.
        self._cluster = (
            ClusterService(
                settings,
                settings.policy,
                self._events,
                control=self._control,
                states=self._states,
                source=source,
            )
            if in_cluster
            else None
        )
        # One for life: a driver that hangs is not called again and again in new threads.
        mps_places = simulation.mps if simulation else places_of(settings)
        original = OriginalSettings(mps_places.memory)
        driver = make_driver(
            settings,
            simulated_smi=simulation.nvidia_smi if simulation else None,
            original=original,
            topology=Topology(),
            finished=self._cluster.hooks.finished_pods.among if self._cluster else None,
        )
        follows_log = simulation is None or "kernel_log" in settings.health.given
        self._health = HealthService(
            HealthPaths(
                kernel_log=settings.health.kernel_log if follows_log else None,
                state=places.kept(HEALTH_NAME),
                xids=settings.health.xids,
                pci_bus=None if simulation else PCI_BUS,
            ),
            self._events,
            observation=observation,
            states=self._states,
            in_cluster=in_cluster,
        )
        self._mps = MpsService(
            settings.mps,
            mps_places,
            driver,
            self._events,
            self._control.nudge_in_turn,
            observation=observation,
            health=self._health,
            throwaway=simulation is not None and simulation.throwaway,
        )
        reporter = EventReporter(self._events)
        self._changes = GpuChanges(
            settings.policy,
            changed=lambda: self._control.nudge("a GPU was changed for a claim"),
            on_progress=reporter.step,
            on_end=reporter.changed_for_claim,
        )
        self._claims = self._claims_service(settings, places, observation, driver.pool)
        self._kept_claims = KeptClaims(self._claims, places.claims)
        last_good = last_good_plan(places.kept(PLAN_NAME))
        self._active_plan = ActivePlan(
            self._control, self._mps.host_for, self._kept_claims.beside, last_good
        )
        self._sampling = SamplingService(
            driver,
            settings.sample,
            begin=self._control.settled.wait,
            on_problems=lambda: self._control.nudge("a reader failed or reads again"),
            held=lambda: self._health.held,
        )
        self._metrics = MetricsService(
            settings, self._sampling, current=self._current, owners=owners_of(simulation)
        )
        if self._claims:
            self._claims.view.attempts.on_end.append(self._claim_attempt_over)
        self._claims_wait = False  # as it was when an attempt ended last
        self._sampling.on_samples.append(self._health.take_samples)
        self._sampling.on_events.append(self._health.take_events)
        self._sampling.on_listener.append(self._health.take_listener)
        self._own_files = OwnFiles(
            places,
            lock,
            (
                *(self._health.file, last_good, original.file),
                *((self._claims.places.file,) if self._claims else ()),
            ),
            changed=lambda: self._control.nudge("the agent's own files changed"),
            repaired=self._mps.node.publish,
        )
        # The loop over all of them, and who follows the states that it publishes.
        self._reconciler = Reconciler(
            control=self._control,
            states=self._states,
            plan=self._active_plan,
            driver=self._mps.node,
            rules=_rules(settings),
            backoff=Backoff(
                _FIRST_RETRY, _LONGEST_RETRY, spread=0.25, jitter=random.SystemRandom().random
            ),
            reporter=reporter,
            hearts=self._hearts,
            changes=self._changes,
            mps=self._mps.overview,
            on_plan=self._mps.plan_accepted,
            hooks=self._cluster.hooks if self._cluster else ChangeHooks(),
            on_round=self._metrics.round_over,
            own_problems=self._own_problems,
        )
        self._plan = PlanService(
            settings,
            settings_file,
            self._control,
            self._states,
            cluster=self._cluster,
            hearts=self._hearts,
            events=self._events,
        )
        self._api = ApiAdapter(
            settings.api.listen,
            places,
            self._control,
            self._states,
            current=self._current,
            mps_service=self._mps,
            metrics=self._metrics,
            own_files=self._own_files,
            policy=settings.policy,
            events=self._events,
            hearts=self._hearts,
            beside=self._kept_claims.beside,
            active_plan=self._active_plan,
        )
        self._states.subscribe(self._publish)
        self._health.subscribe(self._health_changed)

    def _claims_service(
        self, settings: Settings, places: Paths, observation: LastObservation, pool: GpuPool
    ) -> ClaimsService | None:
        """None where no claims are served."""
        if settings.dra.mode == "off" or self._cluster is None:
            return None
        from nodeagent.app.claims_service import ClaimsService

        return ClaimsService(
            settings,
            places,
            self._cluster,
            self._states,
            self._events,
            change=self._changes.change,
            observation=observation,
            health=lambda: self._health.state,
            poll_mps=self._mps.poll,
            pool=pool,
            nudge=self._control.nudge,
        )

    async def run(self) -> None:
        """Run until `stop`; raises the first failure of a service, alone or in a group."""
        await self._health.load()
        await self._kept_claims.load()
        self._events.add(EventType.STARTED, f"the agent of {self._node_name} started")
        if self._control.stopping:
            return
        # What an earlier agent left running has to be known before anything is planned.
        async with self._mps.running():
            await self._run_services()

    def stop(self, signal: str) -> None:
        """Let the running steps finish, and leave the rest to the next start."""
        what = "the agent stops; the running steps finish"
        self._events.add(EventType.STOPPING, what, facts={"signal": signal})
        self._notifier.stopping()
        self._control.stop()

    async def _run_services(self) -> None:
        services = {
            "api": self._api.run(self._ready),
            "watchdog": self._notifier.keep_alive(self._hearts.overdue),
            "simulated node": self._follow_simulated(),
            "plan": self._plan.run(),
            "health": self._health.run(),
            "metrics": self._metrics.run(),
            "own files": self._own_files.run(),
        }
        if self._cluster:
            services["cluster"] = self._cluster.run()
        if self._claims:
            services["claims"] = self._claims.run()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run, name=name) for name, run in services.items()]
            await group.create_task(self._reconciler.run(), name="reconcile")
            if self._cluster:
                await self._cluster.flush()
            self._events.close()
            for task in tasks:
                task.cancel()

    def _ready(self) -> None:
        self._notifier.ready()
        self._on_ready()

    # --- the node's state ---------------------------------------------------------------------

    def _current(self) -> NodeState:
        """With the daemons, health, the cluster and claims as they are at this moment."""
        state, cluster = self._states.newest, self._cluster
        of_cluster = cluster.publisher.problems if cluster else ()
        return replace(
            state,
            mps=self._mps.overview().daemons,
            health=self._health.state,
            cluster=cluster.publisher.state if cluster else None,
            claims=self._claims.view.served if self._claims else None,
            less_offered=self._claims.less_offered if self._claims else (),
            readings=self._metrics.readings,
            problems=(*state.problems, *self._metrics.problems, *of_cluster),
        )

    def _own_problems(self) -> tuple[Problem, ...]:
        """What is wrong with the agent's files and settings, and what it cannot read."""
        readers = (*self._health.problems, *self._sampling.problems)
        of_claims = self._kept_claims.problems
        return (*self._own_files.problems, *self._without_effect, *readers, *of_claims)

    def _health_changed(self) -> None:
        """The cluster gets it at once, plans with the next look."""
        self._control.nudge("health changed")
        self._publish(self._states.newest)

    def _claim_attempt_over(self, operation: str, seconds: float, reason: str) -> None:
        """What was refused, or is not any more, may be what the headline is about."""
        self._metrics.claim_attempt_over(operation, seconds, reason)
        before = self._claims_wait
        self._claims_wait = self._claims is not None and self._claims.view.attempts.any_refused
        if before or self._claims_wait:
            self._publish(self._states.newest)

    def _publish(self, state: NodeState) -> None:
        claims = self._claims.view.served if self._claims else None
        with_health = replace(state, health=self._health.state, claims=claims)
        if self._cluster:
            self._cluster.publisher.publish(with_health, self._active_plan.offered)
        self._metrics.changed()
        found = headline(with_health, in_cluster=self._cluster is not None)
        self._notifier.status(f"{state.phase}: {found.text}")

    async def _follow_simulated(self) -> None:
        """The kernel knows no processes of a simulated node: its file shows when they end."""
        if self._simulation and self._simulation.state:
            async for _ in changes(self._simulation.state):
                self._control.nudge("the simulated node changed")


def _rules(settings: Settings) -> Rules:
    longest = max(settings.driver.step_deadline, longest_step(settings.mps))
    # A look may take several deadlines of one call each; that is no hang.
    deadlines = longest + (3 + LONGEST_JOB) * settings.driver.observe_deadline
    return Rules(
        policy=settings.policy,
        parallel=settings.gpu.parallel,
        resync=settings.resync.interval,
        patience=deadlines + _MARGIN,
        mend=settings.drift == "mend",
    )
