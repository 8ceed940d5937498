"""The agent's API: served over TCP and the Unix socket, answered from the services' values."""

import asyncio
import gc
import resource
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from types import ModuleType

import structlog

from nodeagent.api.answers import RenderedStatus
from nodeagent.api.limits import RequestLimits, limits_within
from nodeagent.app.metrics_service import MetricsService
from nodeagent.app.mps_service import MpsService
from nodeagent.app.paths import OwnFiles
from nodeagent.app.shared import Shared
from nodeagent.errors import NodeagentError
from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.reconcile.active_plan import ActivePlan
from nodeagent.reconcile.plan_update import PlanText
from nodeagent.views.mps import done_json, mps_answer
from nodeagent.views.node_state import NodeState, not_ready
from nodeagent.views.plan_report import plan_json
from nodeagent.views.shapes import Advised, Json, MpsDaemon, as_json
from nodeagent.views.status_report import status_json
from nodeagent.waiting import ends_within

log = structlog.get_logger(__name__)

_MAX_STATUS_AGE = 5.0  # seconds after which a status that is requested is read anew
_FIRST_ROUND_TIMEOUT = 1.0  # seconds that the API leaves to the first reconciliation
_READY_TIMEOUT = 10.0  # seconds after which systemd gets READY although the driver hangs
_SOCKET_RETRY_INTERVAL = 1.0  # seconds between attempts to make a socket that was deleted


@dataclass
class ApiAdapter:
    """Serves the API of one agent: its services' values as JSON.

    `current` gives the node's state as it is at this moment.
    """

    shared: Shared
    current: Callable[[], NodeState]
    mps_service: MpsService
    metrics: MetricsService
    own_files: OwnFiles
    active_plan: ActivePlan

    def __post_init__(self) -> None:
        self.events = self.shared.events
        self._policy = self.shared.policy
        clock = asyncio.get_running_loop().time
        self._rendered = RenderedStatus(self.current, status_json, clock)
        self._planned: tuple[NodePlan, str, str] | None = None  # plan, digest and source
        self._plan_report: asyncio.Task[Json]  # of `_planned`

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until cancelled; calls `ready` once the API is served and the first reconciliation
        is over, or takes too long because the driver hangs.
        """
        settled = self.shared.control.settled
        await ends_within(_FIRST_ROUND_TIMEOUT, settled.wait())
        # aiohttp takes long to import; in a thread, so that the reconciler goes on meanwhile.
        api = await asyncio.to_thread(import_module, "nodeagent.api.listening")
        address = self.shared.settings.api.listen
        tcp, socket = limits_within(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        listening = api.listen(self, address.host, address.port, self.metrics.refusals, tcp)
        async with listening as port, asyncio.TaskGroup() as group:
            listens = asyncio.Event()
            group.create_task(self._serve_socket(api, listens, socket), name="socket")
            await listens.wait()
            name = address.host or "127.0.0.1"
            shown = f"[{name}]" if ":" in name else name
            log.info("the page is served", url=f"http://{shown}:{port}/")
            await ends_within(_READY_TIMEOUT, settled.wait())
            ready()
            # Objects of now stay: to search them for garbage every minute or so would take
            # 50 ms, in which no request is answered.
            gc.freeze()
            await self.metrics.listen(self, tcp)

    async def _serve_socket(
        self, api: ModuleType, listens: asyncio.Event, limits: RequestLimits
    ) -> None:
        """Serve the Unix socket, and a new one when it was deleted; sets `listens` when served."""
        directory = await asyncio.to_thread(self.shared.paths.make_run_directory)
        while directory:
            path = directory / api.SOCKET_NAME
            try:
                async with api.listen_on_socket(self, path, self.metrics.refusals, limits):
                    listens.set()
                    await self.own_files.until_gone(path)
                    self.own_files.lost(path)
            except NodeagentError:  # later on, `own_files` reports why
                if not listens.is_set():
                    raise
                await asyncio.sleep(_SOCKET_RETRY_INTERVAL)
        listens.set()

    def status(self, gpu: str | None) -> bytes | None:
        self.shared.control.refresh_if_older_than(_MAX_STATUS_AGE)
        return self._rendered.page(gpu)

    def history(self, gpu: str | None) -> Json | None:
        now = asyncio.get_running_loop().time()
        found = self.metrics.history.shape(now, datetime.now(UTC), gpu)
        return as_json(found) if found else None

    async def advice(self, namespace: str | None) -> Json:
        found = (a for a in await self.metrics.use.advice() if namespace in (None, a.namespace))
        return as_json(Advised(node=self.shared.settings.node_name, advice=tuple(found)))

    def not_alive(self) -> tuple[str, ...]:
        return self.shared.heartbeats.overdue()

    def not_ready(self) -> tuple[str, ...]:
        return not_ready(self.current())

    def scrape(self, zipped: bool) -> bytes:
        return self.metrics.scrape(zipped)

    async def plan(self) -> Json:
        """The plan's report, made once for each plan and not ended with the client's request."""
        state = self.current()
        planned = state.plan or NodePlan(Verdict.IN_SYNC), state.digest, state.source
        if planned != self._planned:
            plan, digest, source = self._planned = planned
            report = asyncio.to_thread(
                plan_json, plan, digest=digest, source=source, policy=self._policy
            )
            self._plan_report = asyncio.create_task(report, name="plan's report")
        return await asyncio.shield(self._plan_report)

    def preview(self, text: bytes, configuration: str | None) -> tuple[bool, Json] | None:
        # This runs in a thread, so the last published state is used: `current` is the event loop's.
        state = self.shared.states.newest
        if state.observed_at is None:
            return None
        plan = PlanText(text, configuration)
        is_document, found = self.active_plan.preview(plan, state.observed, self._policy)
        return is_document, plan_json(
            found, digest=found.digest, source="preview", policy=self._policy
        )

    def mps(self, device: str | None) -> Json | None:
        return mps_answer(self.current(), device)

    async def restart_mps(self, device: str, force: bool) -> Json:
        await self.mps_service.fleet.restart(device, force=force)
        return self._done_with(device, "restarted")

    async def drain_mps(self, device: str, seconds: float | None, force: bool) -> Json:
        await self.mps_service.drain(device, seconds=seconds, force=force)
        return self._done_with(device, "drained")

    def _done_with(self, device: str, done: str) -> Json:
        state = self.current()
        ended = MpsDaemon(device=device, state="Down", restarts=0, clients=())
        daemon = next((d for d in state.mps if d.device == device), ended)
        return done_json(daemon, done, state.observed)
