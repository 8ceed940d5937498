"""Health checks whose cause is more than a sensor: hangs, what is missing, other programs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from nodeagent.app.health_service import HealthPaths, HealthService
from nodeagent.gpu.driver import Driver
from nodeagent.health.findings import Moment
from nodeagent.plan.observed import MigMode
from nodeagent.plan.plan import GpuPlan, NodePlan, Verdict
from nodeagent.plan.steps import DestroyGpuInstance
from nodeagent.simulation import simulated
from nodeagent.simulation.node import XID
from nodeagent.structs import replace
from tests.acceptance.health_rig import EPOCH, HANGING, PATIENT, World, world
from tests.gpu.steps_of import laid_out
from tests.machine_load import stretched


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


async def test_a_gpu_that_another_is_put_in_place_of(tmp_path: Path) -> None:
    """Without a reboot: what was wrong with the first one is over, and it is not missing."""
    async with world("h100-80gb:1", tmp_path) as w:
        await w.look()
        w.node.xid(0, 48)
        w.node.lose(0)
        await w.look()
        await w.observe()
        assert w.is_reported("gpuLost")
        w.node.swap(0)
        await w.observe()
        await w.look()
        await w.look(after=3600.0)
        assert w.part.state.findings == ()
        assert list(w.part.state.gpus) == [w.gpu]


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
            in_cluster=False,
            now=lambda: Moment(w.now, EPOCH + w.now),
            boot_id=lambda: "boot-1",
        )
        await w.part.load()
        running = asyncio.create_task(w.part.run())
        await asyncio.sleep(0.1)  # the bus is read, by a thread that a busy machine may start late
        await w.look()
        assert w.found("gpuMissing") is None
        async with asyncio.timeout(stretched(30)):
            while (finding := w.found("gpuMissing")) is None:
                await w.look(after=31.0)
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
