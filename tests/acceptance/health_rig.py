"""A simulated node and its health as an agent has it; only time is in the tests' hands.

The sampler and the listener read the simulator through NVML.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from nodeagent.app.health_service import HealthPaths, HealthService
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.event_listener import EventListener
from nodeagent.gpu.event_listener import Timing as EventTiming
from nodeagent.health.findings import Finding, Moment
from nodeagent.metrics.node_metrics import health_samples
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import NodePlan
from nodeagent.reconcile.event_log import EventLog
from nodeagent.reconcile.node_controller import LastObservation
from nodeagent.signals import Signal
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.structs import replace
from nodeagent.telemetry.sampler import Intervals, Sampler
from nodeagent.views.conditions import HEALTHY, conditions
from nodeagent.views.headline import headline
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.status_report import status_json

EPOCH = 1_700_000_000.0
PATIENT = Intervals(slow=0.0, patience=30.0, deadline=30.0)  # a slow machine is no hanging driver
HANGING = Intervals(slow=0.0, patience=0.6, deadline=1.0)  # for a driver that does hang


class World:
    def __init__(self, node: SimulatedNode, driver: Driver, folder: Path, pace: Intervals) -> None:
        self.node = node
        self.driver = driver
        self.now = 1000.0
        self.events = EventLog()
        self.observation = LastObservation()
        self.states = Signal(NodeState("node-a", "file"))
        self.part = HealthService(
            HealthPaths(kernel_log=None, state=folder / "health.json"),
            self.events,
            observation=self.observation,
            states=self.states,
            now=lambda: Moment(self.now, EPOCH + self.now),
            boot_id=lambda: "boot-1",
        )
        self.sampler = Sampler(driver, (), intervals=pace, uptime=lambda: self.now)
        timing = EventTiming(wait=0.0, deadline=1.0, pause=0.0)
        self.listener = EventListener(driver, timing, uptime=lambda: self.now)

    @property
    def observed(self) -> ObservedNode:
        return self.observation.node or ObservedNode()

    def plan(self, plan: NodePlan) -> None:
        self.states.publish(replace(self.states.newest, plan=plan))

    async def look(self, *, after: float = 1.0) -> None:
        self.now += after
        self.part.take_events(await self.listener.listen())
        self.part.take_samples(await self.sampler.round())

    async def observe(self) -> None:
        self.observation.node = await self.driver.observe()
        self.part.observed_node(self.observed)

    @property
    def gpu(self) -> str:
        return self.observed.gpus[0].uuid

    def found(self, cause: str) -> Finding | None:
        return next((f for f in self.part.state.findings if f.cause == cause), None)

    def is_reported(self, cause: str) -> bool:
        """Whether status, metrics and Events report it, and the condition and figures agree."""
        state = NodeState(
            "n",
            "file",
            phase=Phase.IN_SYNC,
            observed=self.observed,
            observed_at=datetime.fromtimestamp(EPOCH, UTC),
            health=self.part.state,
        )
        report = status_json(state)
        assert report is not None
        reported = [f for g in report["gpus"] for f in g["health"]["findings"]]
        reported += report["health"]["findings"]
        in_status = any(f["cause"] == cause for f in reported)
        samples = tuple(health_samples(self.part.state))
        found = [s.labels for s in samples if s.metric == "nodeagent_gpu_finding"]
        assert any(cause in labels for labels in found) is in_status
        finding = self.found(cause)
        assert (finding is not None) is in_status
        if finding is not None:
            wanted = {"healthy": "True", "degraded": "True", "unknown": "Unknown"}
            status = conditions(state, headline(state))[HEALTHY].status
            assert status == wanted.get(finding.severity.value, "False")
            expected = {"healthy": 1.0, "degraded": 0.5, "unhealthy": 0.0}
            for sample in samples:
                mine = {finding.check, finding.place.gpu} <= set(sample.labels)
                if sample.metric == "nodeagent_gpu_health" and mine:
                    assert sample.value == expected[finding.severity.value]
        return in_status


@asynccontextmanager
async def world(boards: str, folder: Path, pace: Intervals = PATIENT) -> AsyncIterator[World]:
    with simulated(boards) as node:
        async with Driver(observe_deadline=30, step_deadline=30) as driver:
            made = World(node, driver, folder, pace)
            await made.part.load()
            await made.observe()
            await made.look()
            await made.look()
            assert made.part.state.findings == ()
            yield made
            node.clear_faults()
            made.sampler.close()
