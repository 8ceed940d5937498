"""The API over a real listener, in front of what a simulated node showed."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
from aiohttp import ClientSession

from nodeagent.api.answers import RenderedStatus
from nodeagent.api.limits import TCP_LIMITS, Refusals, RequestLimits
from nodeagent.api.listening import listen, listen_on_socket
from nodeagent.api.openapi import DESCRIPTION
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import NodePlan, Policy, Verdict
from nodeagent.reconcile.active_plan import ActivePlan
from nodeagent.reconcile.event_log import EventLog
from nodeagent.reconcile.loop_control import LoopControl
from nodeagent.reconcile.plan_update import PlanText
from nodeagent.simulation import simulated
from nodeagent.structs import replace
from nodeagent.telemetry.history import GpuHistories
from nodeagent.use.advice import advise, most_first
from nodeagent.use.records import Grant, Holder, Spread, Use
from nodeagent.views.mps import done_json, mps_answer
from nodeagent.views.node_state import NodeState, Reading
from nodeagent.views.plan_report import plan_json
from nodeagent.views.shapes import Advised, MpsDaemon, as_json
from nodeagent.views.status_report import status_json
from tests.plan.cards import card
from tests.rig import open_driver
from tests.views.daemons import mps_daemon

SCRAPED = b"# HELP a An example\n# TYPE a gauge\n" + b"".join(
    b'a{n="%d"} 1\n' % n for n in range(100_000)
)  # 1.4 MB, as a full node has

USE = Use(
    Holder("workload", "web", "team-a", "main"),
    Grant("3g.40gb", card("h100-80gb").name, 40 << 30),
    held=200_000.0,
    used=20_000.0,
    memory=Spread(3 << 30, 5 << 30, 7 << 30, 2e5),
    sm=Spread(5.0, 12.0, 30.0, 2e5),
)


def preview(
    text: bytes, configuration: str | None, observed: ObservedNode
) -> tuple[bool, dict[str, Any]]:
    """As an agent without a plan answers that observed this."""
    plan = ActivePlan(LoopControl())
    is_document, found = plan.preview(PlanText(text, configuration), observed, Policy())
    report = plan_json(found, digest=found.digest, source="preview", policy=Policy())
    return is_document, report


class Agent:
    """In the place of the agent: answers for one node, notes what is to be done with MPS."""

    def __init__(
        self,
        node: ObservedNode | None = None,
        daemons: tuple[MpsDaemon, ...] = (),
        doing: Doing | None = None,
        previewing: Callable[[bytes, str | None], tuple[bool, dict[str, Any]] | None] | None = None,
    ) -> None:
        self.events = EventLog()
        self.reasons: list[str] = []
        self.state = NodeState("node-a", "file", observed=node or ObservedNode(), mps=daemons)
        self._node = node
        self._doing = doing or Doing()
        self._previewing = previewing
        self.histories = GpuHistories(5.0)
        self.histories.add(0.0, {"GPU-a": Reading(3.0)})
        self.histories.add(10.0, {"GPU-b": Reading(7.0)})
        uses = (USE, replace(USE, holder=Holder("user", "1000")))
        self.advised = most_first(advise(use, (card("h100-80gb"),)) for use in uses)
        self._advising = self.most_advising = 0  # requests at once
        self._rendered = RenderedStatus(lambda: self.state, status_json, time.monotonic)

    def status(self, gpu: str | None) -> bytes | None:
        return self._rendered.page(gpu)

    def history(self, gpu: str | None) -> dict[str, Any] | None:
        found = self.histories.shape(10.0, datetime.now(UTC), gpu)
        return as_json(found) if found else None

    async def advice(self, namespace: str | None) -> dict[str, Any]:
        self._advising += 1
        self.most_advising = max(self.most_advising, self._advising)
        await asyncio.sleep(0.01)
        self._advising -= 1
        found = (a for a in self.advised if namespace in (None, a.namespace))
        return as_json(Advised(node="node-a", advice=tuple(found)))

    async def plan(self) -> dict[str, Any]:
        state = self.state
        plan = state.plan or NodePlan(Verdict.IN_SYNC)
        return plan_json(plan, digest=state.digest, source=state.source, policy=Policy())

    def preview(self, text: bytes, configuration: str | None) -> tuple[bool, dict[str, Any]] | None:
        if self._previewing:
            return self._previewing(text, configuration)
        return preview(text, configuration, self._node) if self._node else None

    def not_alive(self) -> tuple[str, ...]:
        return tuple(self.reasons)

    def not_ready(self) -> tuple[str, ...]:
        return tuple(self.reasons)

    def scrape(self, zipped: bool) -> bytes:
        return gzip.compress(SCRAPED) if zipped else SCRAPED

    def mps(self, device: str | None) -> dict[str, Any] | None:
        return mps_answer(self.state, device)

    async def restart_mps(self, device: str, force: bool) -> dict[str, Any]:
        return await self._doing.done(device, "restarted", "restart", force)

    async def drain_mps(self, device: str, seconds: float | None, force: bool) -> dict[str, Any]:
        return await self._doing.done(device, "drained", "drain", seconds, force)


class Doing:
    """Notes what is to be done, and answers or raises."""

    def __init__(self, answer: Exception | None = None) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self._answer = answer

    async def done(self, device: str, done: str, what: str, *how: object) -> dict[str, Any]:
        self.asked.append((what, device, *how))
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.asked.append(("cancelled", what))
            raise
        if self._answer:
            raise self._answer
        self.asked.append(("done", what))
        return done_json(mps_daemon(device, "Ready"), done, ObservedNode())


class Api:
    def __init__(self, agent: Agent) -> None:
        self.answers = agent
        self.refusals = Refusals()
        self.events = agent.events
        self.reasons = agent.reasons
        self.session: ClientSession
        self.base = ""

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.session.get(self.base + path, headers=headers) as answer:
            return answer.status, await answer.json()


async def observe() -> ObservedNode:
    """A simulated node with two GPUs, one of them divided. In a loop of its own: the driver's
    threads are no work to a loop of virtual time, which would let their deadlines pass.
    """

    async def first_look() -> ObservedNode:
        async with open_driver(observe_deadline=60) as driver:
            return await driver.observe()

    with simulated("h100-80gb:1,t4:1"):
        return await asyncio.to_thread(asyncio.run, first_look())


@asynccontextmanager
async def api(
    *,
    observed: bool = True,
    unix_socket: Path | None = None,
    previewing: Callable[[bytes, str | None], tuple[bool, dict[str, Any]] | None] | None = None,
    daemons: tuple[MpsDaemon, ...] = (),
    doing: Doing | None = None,
    limits: RequestLimits = TCP_LIMITS,
    host: str = "127.0.0.1",
) -> AsyncIterator[Api]:
    node = await observe() if observed else None
    served = Api(answers := Agent(node, daemons, doing, previewing))
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(listen(answers, host, 0, served.refusals, limits))
        if unix_socket:
            await stack.enter_async_context(listen_on_socket(answers, unix_socket, served.refusals))
        served.session = await stack.enter_async_context(ClientSession())
        served.base = f"http://{host}:{port}"
        yield served


def assert_described(path: str, status: int, body: Any, method: str = "get") -> None:
    answer = DESCRIPTION["paths"][path][method]["responses"][str(status)]
    schema = answer["content"]["application/json"]["schema"]
    root = {**schema, "components": DESCRIPTION["components"]}
    jsonschema.validate(body, root, cls=jsonschema.Draft202012Validator)
