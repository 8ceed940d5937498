import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.app.health_service import HealthPaths, HealthService
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.topology import Topology
from nodeagent.health.findings import Moment, Severity
from nodeagent.health.reporting import condition, sentence
from nodeagent.metrics.node_metrics import health_samples
from nodeagent.plan.observed import MigMode
from nodeagent.plan.plan import GpuPlan, NodePlan, Verdict
from nodeagent.plan.steps import DestroyGpuInstance
from nodeagent.simulation import simulated
from nodeagent.simulation.node import XID
from nodeagent.structs import replace
from tests.acceptance.health_rig import EPOCH, HANGING, PATIENT, World, world
from tests.cluster.client.rig import running
from tests.gpu.steps_of import laid_out
from tests.machine_load import stretched

# --- what never changed and is wrong all the same -------------------------------------------------


LINKS = {f"link.{number}.up": 0 for number in range(18)}


@asynccontextmanager
async def installed(
    folder: Path, boards: str, *figures: Mapping[str, float]
) -> AsyncIterator[World]:
    """A node that was looked at for more than a minute, whose GPUs had such figures before."""
    with simulated(boards) as node:
        for index, found in enumerate(figures):
            node.set_figures(index, found)
        async with Driver(observe_deadline=30, step_deadline=30, topology=Topology()) as driver:
            w = World(node, driver, folder, PATIENT)
            await w.part.load()
            await w.observe()
            for _ in range(3):
                await w.look(after=31.0)
            yield w
            w.sampler.close()


def figures_of(w: World, check: str) -> tuple[float, ...]:
    samples = (s for s in health_samples(w.part.state) if s.metric == "nodeagent_gpu_health")
    return tuple(s.value for _, s in sorted((s.labels, s) for s in samples if s.labels[0] == check))


ONE = {f"link.{number}.up": 0 for number in (3, 4)}
REDUCED = {"fabric.health": 1}
FULL = {"fabric.health": 2}


@pytest.mark.parametrize(
    ("boards", "figures", "evidence", "shown"),
    [
        # like GPUs have them up
        ("h100-80gb:3", [LINKS], "links 0-17, up on a GPU", (0.5, 1, 1)),
        ("a100-40gb:2", [{}, ONE], "links 3-4, up on a GPU", (1, 0.5)),
        # by the fabric's word, where all are alike
        ("h100-80gb:1", [LINKS], "links 0-17, though the fabric", (0.5,)),
        ("h100-80gb:1", [ONE | REDUCED], "links 3-4, though the fabric", (0.5,)),
        ("h100-80gb:1", [ONE | FULL], None, (1,)),
        # nobody knows
        ("h100-80gb:1", [ONE], None, ()),
        ("a100-40gb:2", [LINKS, LINKS], None, ()),
        ("h100-80gb:2", [LINKS | {"fabric.state": 1}] * 2, None, ()),
        ("h100-nvl:2", [], None, ()),
        # all are up, or none is there
        ("h100-80gb:2", [], None, (1, 1)),
        ("t4:2", [], None, ()),
    ],
)  # fmt: skip
async def test_links_that_never_came_up(
    tmp_path: Path,
    boards: str,
    figures: list[dict[str, float]],
    evidence: str | None,
    shown: tuple[float, ...],
) -> None:
    """They are missed where something shows that they should be up; else it is not known."""
    async with installed(tmp_path, boards, *figures) as w:
        found = w.found("nvlinkMissing")
        assert (found is None) if evidence is None else found and evidence in found.evidence
        assert figures_of(w, "nvlink") == shown


@pytest.mark.parametrize(
    ("cause", "check", "figure", "evidence"),
    [
        (
            "pcieUnlike", "pcie", {"pcie.widthMax": 8},
            "8 lanes of generation 5 at most; GPUs like it: 16 lanes of generation 5 at most",
        ),
        (
            "pcieIdleUnlike", "pcie", {"pcie.width": 8},
            "8 lanes while idle; GPUs like it: 16 lanes while idle",
        ),
        ("powerLimitUnlike", "power", {"power.limit": 350_000}, "350 W; GPUs like it: 700 W"),
        ("eccUnlike", "ecc", {"ecc.mode": 0}, "ECC off; GPUs like it: ECC on"),
    ],
)  # fmt: skip
async def test_a_gpu_unlike_its_neighbours(
    tmp_path: Path, cause: str, check: str, figure: dict[str, float], evidence: str
) -> None:
    idle = {"pstate": 8}
    boards = "h100-80gb:3,h100-pcie:1"
    async with installed(tmp_path, boards, idle, idle | figure, idle, idle) as w:
        (finding,) = w.part.state.findings
        hit = w.observed.gpus[1].uuid
        assert (finding.cause, finding.place.gpu, finding.evidence) == (cause, hit, evidence)
        assert w.is_reported(cause)
        assert figures_of(w, check)[:3] == (1, 0.5, 1)
        w.node.set_figures(0, figure)
        w.node.set_figures(2, figure)  # now it is one of most
        await w.look(after=31.0)
        assert w.is_reported(cause) is (cause == "pcieUnlike")  # which is read once
    async with installed(tmp_path / "alone", "h100-80gb:1,h100-pcie:1", idle | figure) as w:
        assert w.part.state.findings == ()


# --- beyond the sensors ---------------------------------------------------------------------------


async def test_a_call_that_hangs(tmp_path: Path) -> None:
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
            now=lambda: Moment(w.now, EPOCH + w.now),
            boot_id=lambda: "boot-1",
        )
        await w.part.load()
        async with running(w.part.run()), asyncio.timeout(stretched(30)):
            await asyncio.sleep(0.1)  # a thread reads the bus, which a busy machine may start late
            await w.look()
            assert w.found("gpuMissing") is None
            while (finding := w.found("gpuMissing")) is None:
                await w.look(after=31.0)
        assert finding.place.gpu == ""
        assert finding.evidence.endswith("not listed by NVML: 0000:41:00.0")
        assert w.is_reported("gpuMissing")


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


# --- what is said of findings ---------------------------------------------------------------------


def said(w: World) -> list[str]:
    return [sentence(finding, w.part.state.gpus) for finding in w.part.state.findings]


@pytest.mark.parametrize(
    ("degrees", "evidence"), [(90, "90 °C, at the limit"), (95, "95 °C, 5 °C above the limit")]
)
async def test_how_far_it_is_to_the_limit(tmp_path: Path, degrees: int, evidence: str) -> None:
    async with world("h100-80gb:1", tmp_path) as w:
        figures = {"temperature.slowdown": 90, "temperature.gpu": degrees, "temperature.memory": 40}
        w.node.set_figures(0, figures)
        for _ in range(4):
            await w.look(after=15.0)
        finding = w.found("tooHot")
        assert finding is not None
        assert finding.evidence == evidence


async def test_the_links_of_a_gpu_are_one_finding(tmp_path: Path) -> None:
    async with world("h100-80gb:1", tmp_path) as w:
        for numbers, evidence in (
            ((3,), "link 3 is down, was up"),
            (range(18), "links 0-17 are down, were up"),
        ):
            w.node.set_figures(0, {f"link.{number}.up": 0 for number in numbers})
            await w.look()
            await w.look()
            (finding,) = w.part.state.findings
            assert (finding.evidence, finding.parts) == (evidence, tuple(numbers))
        assert [e.type for e in w.events.events] == ["GpuDegraded"] * 2
        w.node.set_figures(0, {f"nvlink.replay.{number}": 2 for number in range(18)})
        await w.look()
        assert [f.evidence for f in w.part.state.findings if f.cause == "nvlinkErrors"] == [
            "links 0-17: 36 replays and recoveries in 600 s"
        ]


async def test_an_instance_of_a_gpu_that_has_none_is_not_believed(tmp_path: Path) -> None:
    """Drivers that leave its number at 0 mean the GPU."""
    async with world("h100-80gb:1", tmp_path) as w:
        w.node.report(0, XID, 95, (0, 0))
        w.node.report(0, 0x1000, 0, (0, 0))
        await w.look()
        assert {f.cause: f.place.ids for f in w.part.state.findings} == {
            "xidReset": (w.gpu, -1, -1),
            "poison": (w.gpu, -1, -1),
        }
        assert [(c.xid, c.instance) for c in w.part.state.xids] == [(95, None)]
        assert "GPU 0 reported an error that needs a GPU reset (XID 95)" in said(w)


@pytest.mark.parametrize(
    ("recovery", "words"),
    [(0, "needs no recovery"), (1, "needs a GPU reset"), (2, "needs a reboot")],
)
async def test_the_driver_says_what_an_xid_needs(tmp_path: Path, recovery: int, words: str) -> None:
    """Once it was asked, the table of XIDs is not quoted beside it."""
    async with world("h100-80gb:1", tmp_path) as w:
        w.node.xid(0, 95)
        w.node.set_figures(0, {"recovery": recovery})
        await w.look()
        await w.look(after=11.0)
        assert f"GPU 0 reported an error that {words} (XID 95)" in said(w)
        (finding,) = [f for f in w.part.state.findings if f.cause == "xidReset"]
        assert (finding.severity is Severity.HEALTHY) is (recovery == 0)
        assert (condition(w.part.state).status == "True") is (recovery == 0)
