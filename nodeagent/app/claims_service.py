"""The DRA driver of this node: prepares claims and releases them.

The kubelet asks for claims over the sockets of `cluster/kubelet/plugin`, the scheduler sees what
`claim_offers` publishes, and `claims/` decides and keeps records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from nodeagent.app.claim_offers import ClaimOffers
from nodeagent.app.claim_view import ClaimReports, ClaimView
from nodeagent.app.pod_checks import PodChecks
from nodeagent.app.shared import Shared
from nodeagent.claims.model import ClaimedDevice
from nodeagent.claims.names import NVIDIA_DRIVER
from nodeagent.claims.offering.planned import FILE_NAME, PlannedPlaces, planned_places_file
from nodeagent.claims.records import driver_in_force
from nodeagent.claims.reporting.device_reports import DeviceHealth, device_health
from nodeagent.claims.serving.attempts import REASONS, ClaimUnread, Operation, Patience
from nodeagent.claims.serving.cdi import ClaimFiles
from nodeagent.claims.serving.claim_object import ClaimObject, read_claim
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.claims.serving.node_claims import ClaimPlaces, NodeClaims
from nodeagent.claims.serving.pod_object import PodObject, read_pod
from nodeagent.claims.serving.toolkit import TOOLKIT_DIRS, ToolkitEdits
from nodeagent.claims.upkeep.upkeep import INTERVAL, Upkeep
from nodeagent.cluster.kubelet.plugin.claim_calls import HealthFeed
from nodeagent.errors import NodeagentError, Transient
from nodeagent.files.cdi import Edits
from nodeagent.gpu.capability_files import capabilities
from nodeagent.gpu.kernel import boot_id
from nodeagent.gpu.pool import GpuPool
from nodeagent.health.state import HealthState
from nodeagent.mps.setup import has_private_shm, places_of
from nodeagent.plan.desired import DesiredGpu
from nodeagent.plan.observed import Gpu, ObservedNode, Placement
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import ANY_USER
from nodeagent.reconcile.owner import GpuOwners
from nodeagent.views.health_remedies import HealthRemedies

if TYPE_CHECKING:
    from nodeagent.app.cluster_service import ClusterService
    from nodeagent.cluster.kubelet.plugin.claim_calls import ClaimName
    from nodeagent.cluster.kubelet.plugin.driver import Registration
    from nodeagent.cluster.kubelet.pod_resources import PodResourcesClient

# By the setting dra.mps_user; None: mps.user.
_MPS_USERS: Final = {"default": None, "root": "0", "any": ANY_USER}
_RETRY = 5.0  # seconds until sockets that could not be made are tried again


class ClaimsService:
    """Serves claims unless `dra.mode` is off or there is no cluster; `load` comes before planning.

    `places` remembers where the plan's instances were.
    """

    failure_reasons = REASONS

    def __init__(
        self,
        shared: Shared,
        cluster: ClusterService,
        *,
        owners: GpuOwners,
        health: Callable[[], HealthState],
        poll_mps: Callable[[], Awaitable[None]],
        pool: GpuPool,
    ) -> None:
        settings, paths, states = shared.settings, shared.paths, shared.states
        simulation = paths.simulation
        self._is_simulated = simulation is not None
        # A simulated node has a kubelet only where the settings say so.
        self._follows_kubelet = simulation is None or settings.kubelet.use == "always"
        self._upkeep_problems: tuple[Problem, ...] = ()  # what the last upkeep left
        self._settings = settings
        self._cluster = cluster
        self._states = states
        self._observation = shared.observation
        self._health = health
        self._report = shared.control.report
        self._feed = HealthFeed()
        self._patience = Patience()
        self.places = PlannedPlaces(planned_places_file(paths.state_file(FILE_NAME)))
        self.offers = ClaimOffers(shared, cluster, pool, self.places)
        self._problem: Problem | None = None
        self._other_name: Problem | None = None  # why the driver is not called as set
        mps = simulation.mps if simulation else places_of(settings)
        private_shm = has_private_shm(settings.mps, simulated=mps.simulated)
        self.claims = NodeClaims(
            ClaimPlaces(settings.node_name, boot_id(), paths.claims),
            owners=owners,
            fetch=self._fetch,
            fetch_pod=self._fetch_pod,
            observe=self._observed,
            files=ClaimFiles(
                settings.cdi.dir,
                simulation.capabilities if simulation else capabilities,
                Edits if simulation else ToolkitEdits(TOOLKIT_DIRS).read,
                ClaimDaemons(
                    settings.mps.user,
                    mps.run_dir,
                    private_shm,
                    poll_mps,
                    user=_MPS_USERS[settings.dra.mps_user],
                ),
            ),
            rules=lambda gpu: self.offers.rules(gpu, self.claims.store.records),
            nvidia=settings.dra.nvidia_configs,
        )
        self.view = ClaimView(
            self.claims,
            observe=lambda: shared.observation.node or states.newest.observed,
            health=self._device_health,
        )
        self._pod_checks = PodChecks(self.claims)
        self._reports = ClaimReports(
            cluster.access, settings.node_name, self.view.pods.recent, shared.events
        )
        self.view.attempts.ended.subscribe(lambda _: self._pass_on_change())
        self.view.pods_changed.subscribe(lambda _: self._pod_checks.wake())
        self._pod_checks.changed.subscribe(lambda _: self._pods_checked())
        states.subscribe(lambda _: self._pass_on_change())

    async def load(self) -> None:
        """Read the records of claims and the places of planned instances. Raises nothing."""
        await self.claims.store.load()
        await asyncio.to_thread(self.places.load)

    def with_claims(self, goal: DesiredGpu, gpu: Gpu) -> DesiredGpu:
        """Adapt a plan's goal to what claims have of the GPU, and to where its instances were."""
        return self.places.as_before(self.claims.store.with_claims(goal, gpu), gpu)

    @property
    def recorded(self) -> Collection[tuple[str, str]]:
        """Namespace and name of the claims whose devices are known: with records, or ending."""
        named = {(one.namespace, one.name) for one in self.claims.store.records}
        return named | self.view.attempts.ending

    @property
    def problems(self) -> tuple[Problem, ...]:
        own = tuple(filter(None, (self._problem, self._other_name)))
        return (*self.claims.store.problems, *self._upkeep_problems, *own, *self.offers.problems)

    async def run(self) -> NoReturn:
        from nodeagent.cluster.driver_name import name_taken
        from nodeagent.cluster.kubelet.plugin.claim_calls import ClaimCalls
        from nodeagent.cluster.kubelet.plugin.driver import dra_driver

        settings, answered = self._settings, self._kubelet_answered
        kubelet_dir, node = settings.kubelet.dir, settings.node_name
        access = self._cluster.access
        # For life: until the agent is restarted other claims may come under that name.
        name, self._other_name = driver_in_force(settings.dra.driver, self.claims.store.records)
        while True:
            kubelet = self._kubelet_client()
            try:
                taken = name == NVIDIA_DRIVER and await name_taken(access, node, kubelet_dir)
                if taken:
                    self._problem = taken
                    self._report("claims cannot be served")
                else:
                    calls = ClaimCalls(self._perform, self._patience.give_way)
                    async with dra_driver(kubelet_dir, calls, self._feed, answered, name=name):
                        self._problem = None
                        await self._serve(kubelet, name)
            except NodeagentError as error:  # the kubelet's folders are not there yet, say
                self._problem = Problem.from_error(Code.CLUSTER, error)
                self._report("claims cannot be served")
            finally:
                if kubelet:
                    await kubelet.close()
            await asyncio.sleep(_RETRY)

    def _kubelet_answered(self, registration: Registration) -> None:
        self._problem = None
        if registration.state == "refused":
            why = registration.reason
            self._problem = Problem.of(Code.CLUSTER, "driverRefused", why=why)
        self._report("the kubelet has registered the driver, or refuses it")

    async def _perform(self, operation: Operation, claim: ClaimName) -> tuple[ClaimedDevice, ...]:
        asked = claim.namespace, claim.name, claim.uid
        with self.view.attempts.attempt(operation, *asked) as is_news:
            if operation is Operation.RELEASE:
                await self.claims.release(claim.uid)
                return ()

            def on_wait(error: NodeagentError) -> None:
                if is_news(error):
                    self._pass_on_change()
                    self._report("a claim waits")

            return await self._patience.persist(
                claim.uid, partial(self.claims.prepare, *asked), on_wait
            )

    async def _fetch(self, namespace: str, name: str) -> ClaimObject | None:
        from nodeagent.cluster.client import requests
        from nodeagent.cluster.client.faults import ClusterFault

        try:
            request = requests.get_claim(namespace, name)
            found = await self._cluster.access.find(request, read_claim)
        except ClusterFault as fault:
            raise ClaimUnread(fault.message, remedy=fault.remedy) from fault
        self.view.pods.was_read((namespace, name), found)
        return found

    async def _fetch_pod(self, namespace: str, name: str) -> PodObject | None:
        from nodeagent.cluster.client import requests
        from nodeagent.cluster.client.faults import ClusterFault, NotAllowed

        try:
            return await self._cluster.access.find(requests.get_pod(namespace, name), read_pod)
        except NotAllowed:
            return None
        except ClusterFault as fault:
            raise ClaimUnread(fault.message, remedy=fault.remedy) from fault

    async def _observed(self) -> ObservedNode:
        # Before the first state of this agent it is not known what the plan has.
        if self._observation.node is None or self._states.newest.observed_at is None:
            raise Transient.of("gpusUnread")
        return self._observation.node

    def _kubelet_client(self) -> PodResourcesClient | None:
        """Make a client that asks the kubelet what pods have; None where it is not asked."""
        if not self._follows_kubelet:
            return None
        from nodeagent.cluster.kubelet.pod_resources import PodResourcesClient
        from nodeagent.cluster.kubelet.processes import ProcessPods

        kubelet = self._settings.kubelet
        running = frozenset if self._is_simulated else ProcessPods().running
        return PodResourcesClient(kubelet.socket, deadline=kubelet.deadline, running=running)

    async def _serve(self, kubelet: PodResourcesClient | None, driver: str) -> None:
        """Run what serves claims beside the kubelet's calls."""
        publisher = await self.offers.connect(driver)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reports.run(), name="reports on claims")
            group.create_task(self._pod_checks.run(), name="pods of claims are checked")
            if kubelet:
                group.create_task(self._run_upkeep(kubelet), name="upkeep of claims")
            await self.offers.run(publisher, self.claims.store, kubelet)

    async def _run_upkeep(self, kubelet: PodResourcesClient) -> NoReturn:
        """Mend, again and again, what a crash, a reboot or a lost call left."""
        allocations = self.view.recording(kubelet.claimed_devices)
        upkeep = Upkeep(self.claims, allocations=allocations, planned=self._planned_instances)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.view.follow_pods(allocations), name="pods of claims")
            while True:
                problems = await upkeep.round()
                self.view.upkeep_problems = upkeep.problems
                if problems != self._upkeep_problems:
                    self._upkeep_problems = problems
                    self._report("claims were checked")
                self._pass_on_change()
                await asyncio.sleep(INTERVAL)

    def _planned_instances(self) -> frozenset[tuple[str, Placement]]:
        """GPU and placement of all instances on GPUs that the plan names, claims' as well."""
        plan = self._states.newest.plan
        named = {gpu.before.uuid for gpu in plan.gpus} if plan else set()
        node = self._observation.node or ObservedNode()
        return frozenset(
            (gpu.uuid, instance.placement)
            for gpu in node.gpus
            if gpu.uuid in named
            for instance in gpu.instances
        )

    def _pass_on_change(self) -> None:
        """The node, its health or its claims changed: wake what waits, and tell the kubelet."""
        self.offers.wake()
        self._patience.wake()
        self._pod_checks.wake()
        health, records = self._device_health(), self.claims.store.records
        self._feed.publish(health)
        attempts = self.view.attempts.newest({record.uid for record in records})
        self._reports.observe(records, attempts, health, self.view.pod_problems)

    def _pods_checked(self) -> None:
        self.view.pod_problems = self._pod_checks.problems
        self._pass_on_change()
        self._report("pods of claims were checked")

    def _device_health(self) -> tuple[DeviceHealth, ...]:
        state = self._states.newest
        node = self._observation.node or state.observed  # which may be older than a record
        return device_health(
            self.claims.store.records,
            HealthRemedies(state.node, state.runs_as, node),
            self._health(),
            unread=state.unread,
            now=time.time(),
        )
