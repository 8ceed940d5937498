"""Builds the agent's services from its settings, runs them together, and stops them in order.

The reconciler comes first: the node's GPUs do not wait for the API to be imported.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nodeagent.app.after_change import AfterChange
from nodeagent.app.api_adapter import ApiAdapter
from nodeagent.app.cluster_service import ClusterService
from nodeagent.app.driver import make_driver
from nodeagent.app.health_service import HealthPaths, HealthService
from nodeagent.app.metrics_service import MetricsService, owners_of
from nodeagent.app.mps_service import MpsService
from nodeagent.app.paths import OwnFiles, Paths
from nodeagent.app.plan_service import PlanService, SettingsFile
from nodeagent.app.sd_notify import Notifier
from nodeagent.app.shared import Shared
from nodeagent.app.use_service import FILE_NAME as USE_NAME
from nodeagent.claims.records import UnservedRecords
from nodeagent.files.state import StateFile
from nodeagent.files.watch import changes
from nodeagent.gpu.kernel import PCI_DEVICES as PCI_BUS
from nodeagent.gpu.original_settings import OriginalSettings
from nodeagent.gpu.topology import Topology
from nodeagent.gpu.workers import JOB_LIMIT
from nodeagent.health.state_file import FILE_NAME as HEALTH_NAME
from nodeagent.mps.setup import longest_step, places_of
from nodeagent.pacing import Backoff
from nodeagent.plan.desired import DesiredGpu
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Problem
from nodeagent.reconcile.active_plan import ActivePlan
from nodeagent.reconcile.change_hooks import ChangeHooks
from nodeagent.reconcile.event_log import EventType
from nodeagent.reconcile.event_reporter import EventReporter
from nodeagent.reconcile.owner import GpuOwners
from nodeagent.reconcile.plan_update import FILE_NAME as PLAN_NAME
from nodeagent.reconcile.plan_update import last_good_plan
from nodeagent.reconcile.reconciler import Reconciler, Rules
from nodeagent.reconcile.writer_lock import WriterLock
from nodeagent.settings import Settings
from nodeagent.structs import replace
from nodeagent.telemetry.sampling_service import SamplingService
from nodeagent.views.headline import headline
from nodeagent.views.node_state import NodeState

if TYPE_CHECKING:
    from nodeagent.app.claims_service import ClaimsService
    from nodeagent.claims.serving.attempts import Ended

_LAST_WORDS = 1.5  # seconds for the newest state to be written on the Node at the end
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
        paths: Paths,
        notifier: Notifier,
        lock: WriterLock | None,
        *,
        on_ready: Callable[[], None],
    ) -> None:
        shared = self._shared = Shared.of(settings, paths)
        events, control, states = shared.events, shared.control, shared.states
        simulation = paths.simulation
        self._without_effect = settings.dra.without_effect(in_cluster=shared.in_cluster)
        self._notifier = notifier
        self._on_ready = on_ready
        self._started_at = datetime.now(UTC)
        # The cluster, then from the hardware up: the driver, health, MPS, metrics.
        self._cluster = ClusterService(shared) if shared.in_cluster else None
        # One for life: a driver that hangs is not called again and again in new threads.
        mps_places = simulation.mps if simulation else places_of(settings)
        original = OriginalSettings(mps_places.memory)
        driver = make_driver(
            settings,
            simulated_smi=simulation.nvidia_smi if simulation else None,
            original=original,
            topology=Topology(),
            recorded=self._recorded,
        )
        follows_log = simulation is None or "kernel_log" in settings.health.given
        self._health = HealthService(
            HealthPaths(
                kernel_log=settings.health.kernel_log if follows_log else None,
                state=paths.state_file(HEALTH_NAME),
                xids=settings.health.xids,
                pci_bus=None if simulation else PCI_BUS,
            ),
            events,
            observation=shared.observation,
            states=states,
        )
        self._mps = MpsService(shared, mps_places, driver, self._health)
        reporter = EventReporter(events)
        owners = GpuOwners(
            self._mps.node,
            shared.policy,
            parallel=settings.gpu.parallel,
            on_progress=reporter.step,
        )
        owners.changes.subscribe(reporter.changed_for_claim)
        self._claims: ClaimsService | None = None
        self._unserved: UnservedRecords | None = None
        if settings.dra.mode != "off" and self._cluster:
            from nodeagent.app.claims_service import ClaimsService

            self._claims = ClaimsService(
                shared,
                self._cluster,
                owners=owners,
                health=lambda: self._health.state,
                poll_mps=self._mps.fleet.poll,
                pool=driver.pool,
            )
            self._claims.view.attempts.ended.subscribe(self._claim_attempt_over)
            self._claims.view.pods_changed.subscribe(lambda _: self._publish(states.newest))
        self._claims_wait = False  # as it was when an attempt ended last
        last_good = last_good_plan(paths.state_file(PLAN_NAME))
        self._active_plan = ActivePlan(control, self._mps.host_for, self._with_claims, last_good)
        self._sampling = SamplingService(
            driver, settings.sample, begin=control.settled.wait, held=lambda: self._health.held
        )
        self._metrics = MetricsService(
            settings,
            self._sampling,
            current=self._current,
            owners=owners_of(simulation),
            use_file=paths.state_file(USE_NAME),
            workloads=self._cluster.workloads if self._cluster else None,
        )
        if self._claims:
            self._metrics.exporter.work.add_reasons(self._claims.failure_reasons)
        self._sampling.samples.subscribe(self._health.take_samples)
        self._sampling.events.subscribe(self._health.take_events)
        self._sampling.listening.subscribe(self._health.take_listener)
        files: list[StateFile[Any]] = [
            self._health.file,
            last_good,
            original.file,
            self._metrics.use.file,
        ]
        if self._claims:
            files.append(self._claims.places.file)
        self._own_files = OwnFiles(paths, lock, files, repaired=self._mps.node.publish)
        self._after_change = AfterChange(settings.after_change, states)
        # The loop over all of them, and who follows the states that it publishes.
        self._reconciler = Reconciler(
            control=control,
            states=states,
            plan=self._active_plan,
            owners=owners,
            rules=_rules(shared),
            backoff=Backoff(
                _FIRST_RETRY, _LONGEST_RETRY, spread=0.25, jitter=random.SystemRandom().random
            ),
            reporter=reporter,
            heartbeats=shared.heartbeats,
            mps=self._mps.overview,
            on_plan=self._mps.fleet.retry,
            hooks=self._cluster.hooks if self._cluster else ChangeHooks(),
            on_round=self._metrics.exporter.work.add_round,
            own_problems=self._own_problems,
        )
        self._plan = PlanService(shared, settings_file, self._active_plan, self._cluster)
        self._api = ApiAdapter(
            shared, self._current, self._mps, self._metrics, self._own_files, self._active_plan
        )
        # Who hears of what. The cluster gets health at once, plans get it with the next round.
        states.subscribe(self._publish)
        owners.changes.subscribe(control.follow_up)
        control.follow(self._health.news, "health changed")
        control.follow(self._sampling.problems, "a reader failed or reads again")
        control.follow(self._after_change.problems, "the command after a change ended")
        control.follow(self._own_files.changed, "the agent's own files changed")
        self._health.news.subscribe(lambda _: self._publish(states.newest))

    def _recorded(self) -> Collection[tuple[str, str]]:
        """Claims whose devices are known: by `ClaimsService`, or without it by the records left."""
        if self._claims:
            return self._claims.recorded
        left = self._unserved.records if self._unserved else ()
        return {(one.namespace, one.name) for one in left}

    def _with_claims(self, goal: DesiredGpu, gpu: Gpu) -> DesiredGpu:
        """A plan's goal of the GPU beside what claims have there, be they served or left over."""
        claims = self._claims or self._unserved
        return claims.with_claims(goal, gpu) if claims else goal

    async def run(self) -> None:
        """Run until `stop`; raises the first failure of a service, alone or in a group."""
        shared = self._shared
        await self._health.load()
        records = shared.paths.claims
        if self._claims:
            await self._claims.load()
        elif await asyncio.to_thread(records.is_dir):
            self._unserved = await asyncio.to_thread(UnservedRecords.read, records)
        name = shared.settings.node_name
        shared.events.add(EventType.STARTED, f"the agent of {name} started")
        if shared.control.stopping:
            return
        # What an earlier agent left running has to be known before anything is planned.
        async with self._mps.running():
            await self._run_services()

    def stop(self, signal: str) -> None:
        """Let the running steps finish, and leave the rest to the next start."""
        what = "the agent stops; the running steps finish"
        self._shared.events.add(EventType.STOPPING, what, facts={"signal": signal})
        self._notifier.stopping()
        self._shared.control.stop()

    async def _run_services(self) -> None:
        services: dict[str, Coroutine[Any, Any, None]] = {}
        if self._claims:  # first: a pod whose call finds no driver waits for more than a minute
            services["claims"] = self._claims.run()
        services |= {
            "api": self._api.run(self._ready),
            "watchdog": self._notifier.keep_alive(self._shared.heartbeats.overdue),
            "simulated node": self._follow_simulated(),
            "plan": self._plan.run(),
            "health": self._health.run(),
            "metrics": self._metrics.run(),
            "own files": self._own_files.run(),
            "after a change": self._after_change.run(),
        }
        if self._cluster:
            services["cluster"] = self._cluster.run()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run, name=name) for name, run in services.items()]
            await group.create_task(self._reconciler.run(), name="reconcile")
            if self._cluster:
                await self._cluster.publisher.flush(within=_LAST_WORDS)
            self._shared.events.close()
            for task in tasks:
                task.cancel()

    def _ready(self) -> None:
        self._notifier.ready()
        self._on_ready()

    def _current(self) -> NodeState:
        """The newest state with daemons, health, cluster and claims as they are at this moment."""
        state, cluster = self._shared.states.newest, self._cluster
        of_cluster = cluster.publisher.problems if cluster else ()
        return replace(
            state,
            mps=self._mps.overview().daemons,
            health=self._health.state,
            cluster=cluster.publisher.state if cluster else None,
            claims=self._claims.view.served if self._claims else None,
            less_offered=self._claims.offers.less_offered if self._claims else (),
            free_shares=self._claims.offers.free_shares if self._claims else {},
            readings=self._metrics.exporter.readings,
            started_at=self._started_at,
            problems=(*state.problems, *self._metrics.problems, *of_cluster),
        )

    def _own_problems(self) -> tuple[Problem, ...]:
        """What is wrong with the agent's files and settings, and what it cannot read."""
        readers = (*self._health.problems, *self._sampling.problems.newest)
        claims = self._claims or self._unserved
        of_claims = claims.problems if claims else ()
        guard = self._cluster.guard.problem.newest if self._cluster else None
        of_account = (guard,) if guard else ()
        own = (*self._own_files.problems, *self._without_effect)
        after_change = self._after_change.problems.newest
        return (*own, *after_change, *readers, *of_claims, *of_account)

    def _claim_attempt_over(self, ended: Ended | None) -> None:
        """What was refused, or is not any more, may be what the headline is about."""
        if ended:
            self._metrics.exporter.work.add_claim(ended.operation, ended.seconds, ended.reason)
        self._metrics.exporter.changed()
        before = self._claims_wait
        self._claims_wait = self._claims is not None and self._claims.view.attempts.any_refused
        if before or self._claims_wait:
            self._publish(self._shared.states.newest)

    def _publish(self, state: NodeState) -> None:
        claims = self._claims.view.served if self._claims else None
        with_health = replace(state, health=self._health.state, claims=claims)
        if self._cluster:
            self._cluster.publisher.publish(with_health, self._active_plan.offered)
        self._metrics.exporter.changed()
        found = headline(with_health)
        self._notifier.status(f"{state.phase}: {found.text}")

    async def _follow_simulated(self) -> None:
        """The kernel knows no processes of a simulated node: its file shows when they end."""
        simulation = self._shared.paths.simulation
        if simulation and simulation.state:
            async for _ in changes(simulation.state):
                self._shared.control.wake("the simulated node changed")


def _rules(shared: Shared) -> Rules:
    settings = shared.settings
    longest = max(settings.driver.step_deadline, longest_step(settings.mps))
    # A look may take several deadlines of one call each; that is no hang.
    deadlines = longest + (3 + JOB_LIMIT) * settings.driver.observe_deadline
    return Rules(
        policy=shared.policy,
        resync=settings.resync.interval,
        patience=deadlines + _MARGIN,
        mend=settings.drift == "mend",
    )
