"""MPS in the agent: the daemons, their clients, and the events of both."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import structlog

from nodeagent.app.health_service import HealthService
from nodeagent.app.shared import Shared
from nodeagent.errors import DrainTimedOut
from nodeagent.gpu.driver import Driver
from nodeagent.mps.clients.assess import Offence
from nodeagent.mps.clients.watch import ClientWatch
from nodeagent.mps.files.publisher import Publisher
from nodeagent.mps.lifecycle.model import Report
from nodeagent.mps.setup import MpsPlaces, host_for, make_fleet
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.remedies import end_commands
from nodeagent.plan.users import User
from nodeagent.reconcile.event_log import EventType
from nodeagent.reconcile.event_reporter import event_of
from nodeagent.reconcile.node_controller import NodeController, compute_mode_check
from nodeagent.structs import replace
from nodeagent.views.devices import device_words, devices_by_uuid, gpu_of
from nodeagent.views.mps import MpsOverview, client_words, mps_problems
from nodeagent.views.shapes import MpsClient, MpsDaemon
from nodeagent.waiting import ends_within

log = structlog.get_logger(__name__)

_DEBOUNCE = 0.2  # seconds that changes are collected before clients are looked at


class MpsService:
    """The daemons of the node as long as `running` runs; they go on living after it.

    `health` knows what is unhealthy.
    """

    def __init__(
        self, shared: Shared, places: MpsPlaces, driver: Driver, health: HealthService
    ) -> None:
        self._settings = settings = shared.settings.mps
        self._events = shared.events
        self._wake = shared.control.wake_in_turn
        simulation = shared.paths.simulation
        # Then the daemons end with the agent, since no command could find them again.
        self._throwaway = simulation is not None and simulation.throwaway
        observation = shared.observation
        self._stirred = asyncio.Event()
        self._clients: Mapping[str, tuple[MpsClient, ...]] = {}
        self.fleet = make_fleet(
            settings,
            places,
            check=compute_mode_check(observation, exclusive=settings.compute_mode == "exclusive"),
            report=self._report,
            changed=self._changed,
        )
        self.node = NodeController(
            driver,
            self.fleet,
            Publisher(run_dir=places.run_dir, cdi_dir=places.cdi_dir),
            observation,
            health=health,
        )
        health.news.subscribe(lambda _: self.node.fence())
        self._watch = ClientWatch(
            listed=driver.mps_memory,
            report=self._offence,
            deadline=settings.terminate_deadline,
            grace=settings.grace,
        )
        self.host_for = host_for(settings)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Adopt what an earlier agent left, and watch; the fleet is there inside."""
        async with self.fleet, self._watch:
            await self.node.publish()
            watching = asyncio.create_task(self._watch_clients(), name="watch MPS clients")
            try:
                yield
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                if self._throwaway:
                    await self.fleet.keep_only(())

    def overview(self) -> MpsOverview:
        statuses = self.fleet.statuses()
        if not statuses:  # as on most nodes, and this is asked for with each sample
            return MpsOverview((), self.node.publishing_problems)
        observed = self.node.seen or ObservedNode()
        devices = (device for gpu in observed.gpus for device in gpu.devices())
        users = (user for device in devices for user in device.usage.processes)
        pods = {user.pid: user for user in users if user.pid and user.pod}
        daemons = tuple(self._with_clients(daemon, pods) for daemon in statuses)
        problems = mps_problems(daemons, observed)
        return MpsOverview(daemons, (*problems, *self.node.publishing_problems))

    def _with_clients(self, daemon: MpsDaemon, pods: Mapping[int, User]) -> MpsDaemon:
        known = {client.pid: client for client in self._clients.get(daemon.device, ())}
        clients = (known.get(client.pid, client) for client in daemon.clients)
        return replace(daemon, clients=tuple(_with_pod(c, pods.get(c.pid)) for c in clients))

    async def drain(self, device: str, *, seconds: float | None, force: bool) -> None:
        """Accept no new clients and wait for the others; raises DrainTimedOut with those left."""
        left = await self.fleet.drain(device, seconds=seconds, force=force)
        if left:
            known = {client.pid: client for client in self._clients.get(device, ())}
            clients = [known.get(pid, MpsClient(pid=pid)) for pid in left]
            names = ", ".join(map(client_words, clients))
            end = end_commands(client.end for client in clients)
            raise DrainTimedOut.of(
                "drainTimedOut", seconds=f"{seconds or 0:g}", names=names, end=end, device=device
            )

    def _report(self, device: str, report: Report) -> None:
        kind, message = event_of(report)
        self._publish(kind, device, message, {"lines": [*report.lines]} if report.lines else {})

    def _offence(self, device: str, offence: Offence) -> None:
        self._publish(EventType.MPS_CLIENT, device, str(offence), {"pid": offence.client.pid})

    def _publish(
        self, kind: EventType, device: str, message: str, facts: Mapping[str, object]
    ) -> None:
        devices = devices_by_uuid(self.node.seen or ObservedNode())
        words, gpu = device_words(device, devices), gpu_of(device, devices)
        self._events.add(kind, f"{words}: {message}", gpu=gpu, device=device, facts=facts)

    def _changed(self) -> None:
        self._stirred.set()
        self._wake("an MPS daemon or its clients changed")

    async def _watch_clients(self) -> None:
        while True:
            await ends_within(self._settings.check_interval, self._stirred.wait())
            await asyncio.sleep(_DEBOUNCE)
            self._stirred.clear()
            try:
                seen = await self._watch.check(self.fleet.running())
            except Exception:  # a fault of ours; the next look may go well
                log.exception("MPS clients cannot be read")
                continue
            if seen != self._clients:
                self._clients = seen
                self._wake("MPS clients changed")


def _with_pod(client: MpsClient, user: User | None) -> MpsClient:
    """The client with the pod that the driver's picture has for its process."""
    return replace(client, pod=user.in_container, container="") if user else client
