import asyncio
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest

from nodeagent.health.findings import Severity
from nodeagent.health.table import BY_CAUSE, ROWS
from nodeagent.plan.steps import ResetGpu
from nodeagent.views.status_annotation import STATUS
from tests.acceptance.cluster_rig import plan_text
from tests.acceptance.health_rig import World, world
from tests.agent_environment import asked
from tests.machine_load import until
from tests.simulated_cluster.agent import (
    NAME,
    PLAN,
    AgentProcess,
    command,
    in_sync,
    served,
    until_status,
)

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
    return lambda w: w.node.xid(0, number)


def event(kind: int) -> Act:
    return lambda w: w.node.report(0, kind)


def answer(error: str) -> tuple[Act, Act]:
    """Each call about the first GPU answers so, and then as it should."""
    return (
        lambda w: w.node.inject("nvmlDevice*", gpu=0, error=error, times=None),
        lambda w: w.node.clear_faults(),
    )


def reset(w: World) -> None:
    w.part.end_step(ResetGpu(w.gpu, "the test says so"), done=True)


def later(seconds: float) -> Act:
    def wait(w: World) -> None:
        w.now += seconds

    return wait


def grow(name: str, step: float) -> Act:
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
ELSEWHERE = {  # in test_health_findings.py, but for two
    "nvlinkMissing",
    "pcieUnlike",
    "pcieIdleUnlike",
    "powerLimitUnlike",
    "eccUnlike",
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
    assert {case.cause for case in CASES} | ELSEWHERE == {row.cause for row in ROWS}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.cause)
async def test_raised_reported_and_ended(case: Case, tmp_path: Path) -> None:
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
        reported = [event.type for event in w.events.events]
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


async def test_the_condition_and_the_event(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "kmsg")
    kernel = os.open(tmp_path / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    settings = {
        "NODEAGENT_HEALTH_KERNEL_LOG": f"{tmp_path}/kmsg",
        "NODEAGENT_KUBERNETES_TAINTS": "true",
    }
    plan = plan_text("{3g.40gb: 2}")
    async with served(tmp_path) as api:
        api.annotate(NAME, **{PLAN: plan})

        def condition(kind: str = "GPUHealthy") -> dict[str, str]:
            found = api.node(NAME)["status"]["conditions"]
            return next((entry for entry in found if entry["type"] == kind), {})

        def headline() -> dict[str, str]:
            text = api.node(NAME)["metadata"]["annotations"][STATUS]
            found: dict[str, str] = json.loads(text)["headline"]
            return found

        boards = command("h100-80gb:1", tmp_path)
        async with AgentProcess(boards, tmp_path, settings=settings) as agent:
            await until_status(api, in_sync(plan))
            await until(lambda: condition().get("reason") == "Healthy")
            await until(lambda: headline()["severity"] == "ok")
            await until((tmp_path / "run" / "agent.sock").exists)
            _, scraped = await asyncio.to_thread(asked, tmp_path, "/metrics")
            assert "\nnodeagent_cluster_reachable 1\n" in scraped
            micros = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
            line = f"3,17,{micros},-;NVRM: Xid (PCI:0000:1a:00 GPU-I:02): 95, pid=7, name=x\n"
            os.write(kernel, line.encode())
            await until(lambda: condition()["status"] == "False")
            assert condition()["reason"] == "XidReset"
            taint = {"key": "nodeagent.io/gpu-unhealthy", "effect": "NoSchedule"}
            await until(lambda: api.node(NAME)["spec"].get("taints") == [taint])
            said, _, _ = condition()["message"].partition(" (reset GPU)")
            cause = "GPU 0 reported an error that needs a GPU reset (XID 95) in slices "
            assert said in (f"{cause}0-3", f"{cause}4-7")
            await until(lambda: headline()["severity"] == "error")
            assert headline()["text"] == f"{said}."
            assert headline()["code"] == "XidReset"
            assert "`nvidia-smi --gpu-reset -i 0`" in headline()["remedy"]
            await until(lambda: condition("GPUPartitionsReady")["message"].startswith(said))
            assert condition("GPUPartitionsReady")["status"] == "True"
            await until(lambda: any(e["reason"] == "GpuUnhealthy" for e in api.events))
            (event,) = (e for e in api.events if e["reason"] == "GpuUnhealthy")
            assert event["type"] == "Warning"
            assert event["note" if "note" in event else "message"].startswith("GPU 0 reported ")
        assert agent.code == 0, agent.said()
    os.close(kernel)
