"""Every health check, from a simulated cause to status, condition, metric and Events, and its end.

The sampler and the listener read the simulator through NVML; only time is in our hands, so that an
hour is a line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pynvml
import pytest

from nodeagent.app.health_service import HealthPaths, HealthService
from nodeagent.execute.node_reader import LastObservation
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.event_listener import EventListener
from nodeagent.gpu.event_listener import Timing as EventTiming
from nodeagent.health.findings import Finding, Moment, Severity
from nodeagent.health.table import BY_CAUSE, ROWS
from nodeagent.metrics.agent_metrics import GPU_FINDING, GPU_HEALTH
from nodeagent.metrics.node_metrics import health_samples
from nodeagent.plan.observed import MigMode, ObservedNode
from nodeagent.plan.plan import GpuPlan, NodePlan, Verdict
from nodeagent.plan.steps import DestroyGpuInstance, ResetGpu
from nodeagent.reconcile.event_log import EventLog
from nodeagent.reconcile.loop_control import NodeStates
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.simulation.node import XID
from nodeagent.structs import replace
from nodeagent.telemetry.sampler import Intervals, Sampler
from nodeagent.views.conditions import HEALTHY, conditions
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.status_report import status_json
from tests.gpu.steps_of import laid_out

EPOCH = 1_700_000_000.0


PATIENT = Intervals(slow=0.0, patience=30.0, deadline=30.0)  # a slow machine is no hanging driver
HANGING = Intervals(slow=0.0, patience=0.6, deadline=1.0)  # for a driver that does hang


class World:
    """A node, and its health as an agent has it."""

    def __init__(self, node: SimulatedNode, driver: Driver, folder: Path, pace: Intervals) -> None:
        self.node = node
        self.driver = driver
        self.now = 1000.0
        self.events = EventLog()
        self.observation = LastObservation()
        self.states = NodeStates(NodeState("node-a", "file"))
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
        """This is how the node stands to its plan from now on."""
        self.states.publish(replace(self.states.newest, plan=plan))

    async def look(self, *, after: float = 1.0) -> None:
        """The agent's next look, after so many seconds."""
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
        """The finding of this cause, if there is one."""
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
        found = [s.labels for s in samples if s.metric is GPU_FINDING]
        assert any(cause in labels for labels in found) is in_status
        finding = self.found(cause)
        assert (finding is not None) is in_status
        if finding is not None:
            wanted = {"healthy": "True", "degraded": "True", "unknown": "Unknown"}
            status = conditions(state)[HEALTHY].status
            assert status == wanted.get(finding.severity.value, "False")
            expected = {"healthy": 1.0, "degraded": 0.5, "unhealthy": 0.0}
            for sample in samples:
                mine = {finding.check, finding.place.gpu} <= set(sample.labels)
                if sample.metric is GPU_HEALTH and mine:
                    assert sample.value == expected[finding.severity.value]
        return in_status


@asynccontextmanager
async def world(boards: str, folder: Path, pace: Intervals = PATIENT) -> AsyncIterator[World]:
    """A node that was looked at once, and is well."""
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


Act = Callable[[World], object]


@dataclass(frozen=True)
class Case:
    """`cause` is a row of the check table, which also says how bad it is and what helps. `begin`
    causes it, `end` ends it. Between the two and afterwards come so many looks (`looks`), `pause`
    seconds apart; while it lasts, `each` is done before each look.
    """

    cause: str
    begin: Act
    end: Act
    looks: int = 1
    pause: float = 1.0
    each: Act = lambda _: None
    boards: str = "h100-80gb:2"


def nothing(_: World) -> None:
    """It comes or goes with what is done before each look."""


def sensor(*figures: tuple[str, float]) -> tuple[Act, Act]:
    """The first GPU's sensors say so, and then what they always did."""

    def usual(w: World) -> None:
        for name, _ in figures:
            w.node.set_figures(0, {name: None})

    return lambda w: w.node.set_figures(0, dict(figures)), usual


def xid(number: int) -> Act:
    """NVML reports an XID of the first GPU."""
    return lambda w: w.node.xid(0, number)


def event(kind: int) -> Act:
    """NVML reports an event of this type."""
    return lambda w: w.node.report(0, kind)


def answer(error: str) -> tuple[Act, Act]:
    """Each call about the first GPU answers so, and then as it should."""
    return (
        lambda w: w.node.inject("nvmlDevice*", gpu=0, error=error, times=None),
        lambda w: w.node.clear_faults(),
    )


def reset(w: World) -> None:
    """The agent resets the GPU."""
    w.part.end_step(ResetGpu(w.gpu, "the test says so"), done=True)


def later(seconds: float) -> Act:
    """So much time goes by."""

    def wait(w: World) -> None:
        w.now += seconds

    return wait


def grow(name: str, step: float) -> Act:
    """A counter goes on growing."""
    grown: dict[int, float] = {}

    def more(w: World) -> None:
        grown[id(w)] = grown.get(id(w), 0.0) + step
        w.node.set_figures(0, {name: grown[id(w)]})

    return more


def unbind(w: World) -> None:
    """The kernel driver leaves the first GPU, of which NVML then reports nothing."""
    w.node.bind(0, bound=False)
    w.node.inject("nvmlDevice*", gpu=0, error="GPU_IS_LOST", times=None)


def bind(w: World) -> None:
    """It comes back."""
    w.node.clear_faults()
    w.node.bind(0, bound=True)


def throttled(cause: str, name: str, seconds: float) -> Case:
    """A counter of nanoseconds that grows by so many seconds in each 40 s."""
    return Case(cause, nothing, nothing, each=grow(name, seconds * 1e9), looks=8, pause=40.0)


_HW, _BRAKE, _POWER, _THERMAL, _BANK = (
    f"field.{number}"
    for number in (
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
        pynvml.NVML_FI_DEV_PERF_POLICY_POWER,
        pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL,
        pynvml.NVML_FI_DEV_PENDING_BANK_REMAPPING,
    )
)
_HOT = (("temperature.gpu", 95), ("temperature.memory", 40))

CASES = (
    Case("xidApplication", xid(31), later(601)),
    Case("xidReset", xid(95), reset),
    Case("xidReboot", xid(151), reset),
    Case("fallenOffBus", xid(79), reset),
    Case("xidHardware", xid(54), reset),
    Case("xidSoftware", xid(78), reset),
    Case("xidSupport", xid(123), later(3601)),
    Case("xidUnclassified", xid(999), later(3601)),
    Case("xidNvlink", xid(149), later(3601)),
    Case("recoveryAction", *sensor(("recovery", 1))),
    Case("gpuLost", *answer("GPU_IS_LOST"), pause=10.0),
    Case("gpuResetRequired", *answer("RESET_REQUIRED"), pause=10.0),
    Case("gpuUnknown", *answer("DRIVER_NOT_LOADED"), pause=10.0),
    Case("gpuUnavailable", event(0x4000), reset),
    Case("gpuUnbound", unbind, bind),
    # A card that reports no recovery action: where it reports that none is needed, this is but
    # degraded.
    Case("eccUncorrected", *sensor(("ecc.uncorrected.volatile", 1)), boards="t4:1"),
    Case("eccDoubleBit", event(0x2), reset),
    Case("eccStorm", event(0x200), later(3601)),
    Case("eccModePending", *sensor(("ecc.pending", 0))),
    Case("sramThreshold", *sensor(("ecc.sramThreshold", 1))),
    Case("rowRemapPending", *sensor(("rows.pending", 1))),
    Case("rowRemapFailed", *sensor(("rows.failed", 1))),
    Case("rowRemapMany", *sensor(("rows.uncorrectable", 512))),
    Case("rowRemapSpent", *sensor(("banks.none", 1))),
    Case("retirementFailed", event(0x800), reset),
    Case("bankRemapPending", *sensor((_BANK, 1)), boards="b200:1"),
    Case("memoryUnrepairable", *sensor(("memory.unrepairable", 1))),
    Case("repairPending", *sensor(("repair.tpc", 1))),
    Case("retiredPagesMany", *sensor(("pages.singleBit", 63)), boards="t4:1"),
    Case("retiredPagesDoubleBit", *sensor(("pages.doubleBit", 15)), boards="t4:1"),
    Case("retiredPagesPending", *sensor(("pages.pending", 1)), boards="t4:1"),
    Case("poison", event(0x1000), later(601)),
    Case("poisonFatal", event(0x2000), reset),
    throttled("throttledByHeat", _THERMAL, 20),
    throttled("throttledByPower", _POWER, 30),
    throttled("hwThermalSlowdown", _HW, 20),
    throttled("hwPowerBrake", _BRAKE, 20),
    Case("hwSlowdown", *sensor(("reasons", 0x8)), looks=8, pause=40.0),
    Case("tooHot", *sensor(*_HOT), looks=5, pause=10.0),
    Case("memoryTooHot", *sensor(("temperature.memory", 99)), looks=5, pause=10.0),
    Case("pcieReplays", nothing, nothing, looks=10, pause=60.0, each=grow("pcie.replays", 400)),
    Case("pcieLink", *sensor(("pcie.width", 8), ("pstate", 0)), looks=4, pause=30.0),
    Case("nvlinkDown", *sensor(("link.3.up", 0))),
    Case("nvlinkErrors", sensor(("nvlink.replay.3", 1))[0], later(1300)),
    Case("nvlinkCrc", nothing, nothing, 6, 15.0, grow("nvlink.crcFlit.3", 2000)),
    Case("fabricNotReady", *sensor(("fabric.state", 2)), looks=4, pause=120.0),
    Case("fabricFailed", *sensor(("fabric.state", 3), ("fabric.status", 5))),
    Case("fabricDegraded", *sensor(("fabric.state", 3), ("fabric.health", 1))),
    Case("migChanged", event(0x100), later(601)),
)
ELSEWHERE = {
    "gpuHangs",
    "gpuMissing",
    "driverHangs",
    "driverMissing",  # tests/app/test_service_health.py, as is the next but one
    "driverNotLoaded",
    "eventsUnheard",
    "modeDrift",
    "inforomCorrupt",
}


def test_every_cause_is_in_this_file() -> None:
    """None of the check table is left out."""
    assert {case.cause for case in CASES} | ELSEWHERE == {row.cause for row in ROWS}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.cause)
async def test_raised_reported_and_ended(case: Case, tmp_path: Path) -> None:
    """By its cause, on every surface, with what helps; and gone when the cause is gone."""
    row = BY_CAUSE[case.cause]
    async with world(case.boards, tmp_path) as w:
        case.begin(w)
        for _ in range(case.looks):
            case.each(w)
            await w.look(after=case.pause)
        assert w.is_reported(case.cause)
        (finding,) = w.part.state.findings
        assert (finding.cause, finding.place.gpu) == (case.cause, w.gpu)
        assert (finding.severity, finding.action) == (row.severity, row.action)
        assert finding.evidence
        case.end(w)
        for _ in range(2 * case.looks + 1):
            await w.look(after=case.pause)
        assert not w.is_reported(case.cause)
        reported = [event.type.value for event in w.events.events]
        assert (
            reported[0]
            == {
                Severity.HEALTHY: "GpuNotice",
                Severity.DEGRADED: "GpuDegraded",
                Severity.UNKNOWN: "GpuUnknown",
                Severity.UNHEALTHY: "GpuUnhealthy",
            }[row.severity]
        )
        assert reported[-1] == "GpuRecovered"


# --- those that need more than a sensor -----------------------------------------------------------


async def test_a_call_that_hangs(tmp_path: Path) -> None:
    """It is reported within its deadline, the other GPU goes on, and after ten minutes it is
    unhealthy; over when it answers.
    """
    async with world("h100-80gb:2", tmp_path, HANGING) as w:
        began = asyncio.get_running_loop().time()
        w.node.inject("nvmlDeviceGetPowerUsage", gpu=0, hang=True, times=None)
        await w.look()
        while w.found("gpuHangs") is None:
            assert asyncio.get_running_loop().time() - began < 30.0
            await w.look(after=0.1)
        assert w.is_reported("gpuHangs")
        assert [f.place.gpu for f in w.part.state.findings] == [w.gpu]
        assert w.part.fences(w.observed).gpus == frozenset()
        await w.look(after=700.0)
        finding = w.found("gpuHangs")
        assert finding is not None
        assert (finding.severity.value, finding.action.value) == ("unhealthy", "reboot")
        assert w.part.fences(w.observed).gpus == {w.gpu}
        w.node.clear_faults()
        while w.found("gpuHangs") is not None:
            assert asyncio.get_running_loop().time() - began < 60.0
            await w.look(after=5.0)
            await asyncio.sleep(0.01)
        assert not w.is_reported("gpuHangs")


async def test_a_driver_that_does_not_count_its_gpus(tmp_path: Path) -> None:
    """It is a finding of the node and not of a GPU."""
    async with world("h100-80gb:2", tmp_path) as w:
        w.node.inject("nvmlDeviceGetCount*", error="UNKNOWN", times=None)
        await w.look()
        assert w.is_reported("driverHangs")
        (finding,) = w.part.state.findings
        assert finding.place.gpu == ""
        w.node.clear_faults()
        await w.look()
        assert not w.is_reported("driverHangs")


async def test_a_driver_that_is_unloaded(tmp_path: Path) -> None:
    """It is not reported as a driver that hangs."""
    async with world("h100-80gb:2", tmp_path) as w:
        w.node.inject("nvmlDeviceGetCount*", error="DRIVER_NOT_LOADED", times=None)
        await w.look()
        assert w.is_reported("driverNotLoaded")
        assert w.found("driverHangs") is None
        w.node.clear_faults()
        await w.look()
        assert not w.is_reported("driverNotLoaded")


async def test_a_gpu_on_the_bus_that_nvml_does_not_list(tmp_path: Path) -> None:
    """By its address, after half a minute: a GPU that is being reset is not missing."""
    devices = tmp_path / "devices"
    for address in ("0000:1a:00.0", "0000:27:00.0", "0000:41:00.0"):
        (devices / address).mkdir(parents=True)
        (devices / address / "vendor").write_text("0x10de\n")
        (devices / address / "class").write_text("0x030200\n")
    async with world("h100-80gb:2", tmp_path) as w:
        w.part = HealthService(
            HealthPaths(kernel_log=None, state=None, pci_bus=devices),
            w.events,
            observation=w.observation,
            states=w.states,
            now=lambda: Moment(w.now, EPOCH + w.now),
            boot_id=lambda: "boot-1",
        )
        await w.part.load()
        running = asyncio.create_task(w.part.run())
        await asyncio.sleep(0.05)
        await w.look()
        assert w.found("gpuMissing") is None
        await w.look(after=31.0)
        finding = w.found("gpuMissing")
        assert finding is not None
        assert finding.place.gpu == ""
        assert finding.evidence.endswith("not listed by NVML: 0000:41:00.0")
        assert w.is_reported("gpuMissing")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_inforom_that_is_corrupt(tmp_path: Path) -> None:
    """It is validated once for each start of the driver, since that reads flash."""
    with simulated("h100-80gb:1") as node:
        node.set_figures(0, {"inforom.corrupt": 1})
        async with Driver(observe_deadline=30, step_deadline=30) as driver:
            w = World(node, driver, tmp_path, PATIENT)
            await w.part.load()
            await w.observe()
            await w.look()
            assert w.is_reported("inforomCorrupt")
            w.sampler.close()


async def test_a_mode_that_another_program_changed(tmp_path: Path) -> None:
    """MIG was switched off past the agent; after half a minute it is reported, if not mended."""
    async with world("h100-80gb:1", tmp_path) as w:
        (gpu,) = w.observed.gpus
        assert gpu.mig is not None
        assert not gpu.mig.current
        on = replace(gpu, mig=MigMode(current=True, pending=True))
        w.plan(NodePlan(Verdict.IN_SYNC, (GpuPlan.in_sync(on),)))
        await w.look()
        await w.look(after=31.0)
        finding = w.found("modeDrift")
        assert finding is not None
        assert finding.evidence == "MIG mode is off, wanted on"
        assert w.is_reported("modeDrift")
        w.plan(NodePlan(Verdict.IN_SYNC, (GpuPlan.in_sync(gpu),)))
        await w.look()
        assert not w.is_reported("modeDrift")


async def test_a_sick_instance_leaves_its_sibling_alone(tmp_path: Path) -> None:
    """An XID of one GPU instance fences its slices, and its errors count as its own; what is
    destroyed ends what was reported of its applications.
    """
    async with world("h100-80gb:1", tmp_path) as w:
        gpu = await laid_out(w.driver, 0, at0="3g.40gb", at4="3g.40gb")
        await w.observe()
        await w.look()
        left, right = sorted(gpu.instances, key=lambda i: i.placement.start)
        w.node.xid(f"0/{left.id}/0", 13)
        w.node.report(0, XID, 95, (right.id, 0xFFFF_FFFF))
        await w.look()
        assert w.part.fences(w.observed).slices(w.gpu) == 0xF0
        assert w.part.fences(w.observed).reasons.keys() == {c.uuid for c in right.compute}
        # The instances were made past the agent, which NVML reports too.
        assert {f.cause: f.place.instance for f in w.part.state.findings} == {
            "migChanged": None,
            "xidApplication": left.id,
            "xidReset": right.id,
        }
        counted = {c.xid: c.instance for c in w.part.state.xids}
        assert counted == {13: left.id, 95: right.id}
        await w.driver.apply(
            DestroyGpuInstance(
                w.gpu,
                left.id,
                left.profile,
                left.placement,
                tuple(c.uuid for c in left.compute),
                "",
            )
        )
        await w.look()
        assert {f.cause for f in w.part.state.findings} == {"migChanged", "xidReset"}


async def test_the_driver_s_word_outranks_the_table(tmp_path: Path) -> None:
    """An XID that calls for a reset, and a driver that asks for none once it was asked after it."""
    async with world("h100-80gb:1", tmp_path) as w:
        w.node.xid(0, 95)
        await w.look()
        assert w.part.fences(w.observed).gpus == {w.gpu}
        await w.look(after=11.0)
        finding = w.found("xidReset")
        assert finding is not None
        assert finding.severity.value == "healthy"
        assert w.part.fences(w.observed).gpus == frozenset()
