"""Health in the agent: readings and the kernel log in; findings, Events, fences and a file out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.app.health_service import HealthPaths, HealthService
from nodeagent.errors import UsageError
from nodeagent.execute.node_reader import LastObservation
from nodeagent.health.findings import Moment, Severity
from nodeagent.health.readings import (
    Answer,
    GpuEvent,
    GpuEventKind,
    InstanceReading,
    NodeReading,
    Silence,
    Source,
    XidEvent,
)
from nodeagent.plan.observed import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    ObservedNode,
    Placement,
    Usage,
    User,
)
from nodeagent.plan.steps import ResetGpu, SetMigMode
from nodeagent.reconcile.event_log import EventLog
from nodeagent.reconcile.loop_control import NodeStates
from nodeagent.structs import replace
from nodeagent.views.node_state import NodeState
from tests.health.rig import ADDRESS, EPOCH, GPU, gpu
from tests.plan.cards import card

LEFT, RIGHT = Placement(0, 4), Placement(4, 4)
TRAINER = User(4711, "python", namespace="ml", pod="train-0", container="main")
ECC = 1


def _instance(number: int, placement: Placement, *users: User) -> GpuInstance:
    device = ComputeInstance(0, "3g.40gb", 3, f"MIG-{number}", usage=Usage(users))
    return GpuInstance(number, 9, "3g.40gb", placement, (device,))


CARD: Gpu = replace(card("h100-80gb"), uuid=GPU, pci_bus_id=ADDRESS)
NODE = ObservedNode((replace(CARD, instances=(_instance(1, LEFT), _instance(2, RIGHT, TRAINER))),))


class Rig:
    """One agent's health, its time in our hands."""

    def __init__(self, folder: Path, *, boot: str = "boot-1", **places: Path) -> None:
        self.uptime = 1000.0
        self.boot = boot
        self.changes = 0
        self.events = EventLog()
        self.observation = LastObservation()
        named = {"kernel_log": None, "state": folder / "health.json", **places}
        self.part = HealthService(
            HealthPaths(**named),
            self.events,
            observation=self.observation,
            states=NodeStates(NodeState("node-a", "file")),
            now=lambda: Moment(self.uptime, EPOCH + self.uptime),
            boot_id=lambda: self.boot,
        )
        self.part.subscribe(self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def see(self, node: ObservedNode = NODE) -> None:
        self.observation.node = node
        self.part.observed_node(node)

    def take(self, *gpus: object, after: float = 1.0, **values: object) -> None:
        self.uptime += after
        now = Moment(self.uptime, EPOCH + self.uptime)
        self.part.take(NodeReading(now, self.boot, gpus=gpus, **values))  # type: ignore[arg-type]

    def xid(self, number: int, **values: object) -> None:
        event = XidEvent(number, self.uptime + 1, Source.NVML, GPU, **values)  # type: ignore[arg-type]
        self.take(gpu(), xids=(event,))

    def causes(self) -> list[str]:
        return [finding.cause for finding in self.part.state.findings]

    def reported(self) -> list[tuple[str, str]]:
        return [(event.type.value, event.message) for event in self.events.events]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Loaded, and followed up until the end."""
        await self.part.load()
        task = asyncio.create_task(self.part.run())
        await asyncio.sleep(0)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.002)


# --- findings -------------------------------------------------------------------------------------


async def test_a_finding_is_reported_with_the_pods_it_hit(tmp_path: Path) -> None:
    """It is in the state and in an Event of its GPU, and it is a change; its end as well."""
    rig = Rig(tmp_path)
    await rig.part.load()
    rig.see()
    rig.xid(95, instance=2)
    (finding,) = rig.part.state.findings
    assert (finding.severity, finding.place.placement) == (Severity.UNHEALTHY, RIGHT)
    assert [str(pod) for pod in finding.pods] == ["ml/train-0"]
    assert rig.changes == 1
    (event,) = rig.events.events
    assert (event.type.value, event.gpu) == ("GpuUnhealthy", GPU)
    said = "GPU 0 reported an error that needs a GPU reset"
    assert event.message.startswith(f"{said} in slices 4-7: XID 95")
    assert event.message.endswith(" It hit ml/train-0.")
    rig.take(resets=frozenset({GPU}))
    assert rig.causes() == []
    assert rig.changes == 2
    assert rig.reported()[-1] == (
        "GpuRecovered",
        f"{said} (XID 95) in slices 4-7: over, the GPU was reset",
    )


async def test_what_is_measured_comes_and_goes(tmp_path: Path) -> None:
    """A reading that changes nothing is not reported."""
    rig = Rig(tmp_path)
    await rig.part.load()
    rig.see()
    for _ in range(3):
        rig.take(gpu(ecc_uncorrected=ECC))
    assert rig.causes() == ["eccUncorrected"]
    assert rig.changes == 1
    rig.take(gpu(ecc_uncorrected=0))
    assert (rig.causes(), rig.changes) == ([], 2)
    assert [kind for kind, _ in rig.reported()] == ["GpuUnhealthy", "GpuRecovered"]


async def test_a_storm_of_xids_is_counted_and_reported_once_a_minute(tmp_path: Path) -> None:
    """Neither the log of events nor the cluster is filled with it."""
    rig = Rig(tmp_path)
    await rig.part.load()
    rig.see()
    for _ in range(50):
        rig.xid(43)
    assert rig.part.state.xids[0].count == 50
    assert [kind for kind, _ in rig.reported()] == ["Xid"]
    rig.uptime += 60.0
    rig.xid(43)
    assert [kind for kind, _ in rig.reported()] == ["Xid", "Xid"]


# --- what the agent itself does -------------------------------------------------------------------


async def test_a_reset_by_the_agent_ends_what_it_mends(tmp_path: Path) -> None:
    """At once, and not with the next reading; one that failed ends nothing."""
    rig = Rig(tmp_path)
    await rig.part.load()
    rig.see()
    rig.xid(95)
    step = ResetGpu(GPU, "for MIG")
    rig.part.begin_step(step)
    rig.part.end_step(step, done=False)
    assert rig.causes() == ["xidReset"]
    rig.part.end_step(step, done=True)
    assert rig.causes() == []


async def test_only_a_foreign_change_of_mig_is_news(tmp_path: Path) -> None:
    """NVML reports the agent's own as well, a moment late; another GPU's are foreign."""
    rig = Rig(tmp_path)
    await rig.part.load()
    rig.see()

    def change(at: float, uuid: str = GPU) -> None:
        event = GpuEvent(GpuEventKind.FOREIGN_MIG_CHANGE, uuid, at)
        rig.take(gpu(), after=0.0, events=(event,))

    step = SetMigMode(GPU, True, "the plan asks for it")
    rig.part.begin_step(step)
    rig.uptime += 1.0
    change(rig.uptime - 0.5)
    rig.part.end_step(step, done=True)
    rig.part.begin_step(step)
    change(rig.uptime - 0.5)  # of the step before, while the next is taken
    rig.part.end_step(step, done=True)
    rig.uptime += 1.0
    change(rig.uptime)
    assert rig.causes() == []
    change(rig.uptime, "GPU-other")
    rig.uptime += 10.0
    change(rig.uptime)
    assert rig.causes() == ["migChanged", "migChanged"]


# --- fences ---------------------------------------------------------------------------------------


async def test_a_sick_slice_is_fenced(tmp_path: Path) -> None:
    """As it was observed, with the devices on it."""
    rig = Rig(tmp_path)
    await rig.part.load()
    rig.see()
    rig.take(
        gpu(
            instances=(InstanceReading(1, LEFT, 0), InstanceReading(2, RIGHT, 3)),
            ecc_uncorrected=ECC,
        )
    )
    fences = rig.part.fences(NODE)
    assert (fences.slices(GPU), fences.gpus) == (0xF0, frozenset())
    assert fences.reasons == {"MIG-2": "it has uncorrected memory errors"}
    assert rig.part.held == frozenset()
    rig.xid(79)
    assert rig.part.fences(NODE).gpus == {GPU}
    assert rig.part.held == {GPU}


async def test_a_gpu_that_is_bound_while_no_event_is_heard(tmp_path: Path) -> None:
    """It is asked again after a while, for only that can end the finding."""
    rig = Rig(tmp_path)
    await rig.part.load()
    rig.see()
    rig.take(gpu(answer=Answer(Silence.UNBOUND, rig.uptime, "taken off")))
    assert rig.part.held == {GPU}
    rig.uptime += 301.0
    assert rig.part.held == frozenset()
    rig.take(gpu(answer=Answer()))
    assert rig.causes() == []


# --- what is kept ---------------------------------------------------------------------------------


async def test_findings_outlive_the_agent(tmp_path: Path) -> None:
    """The next agent of this boot fences from its start and counts on; nothing is reported anew."""
    rig = Rig(tmp_path)
    async with rig.running():
        rig.see()
        rig.xid(95, instance=2)
        await until((tmp_path / "health.json").exists)
    assert (tmp_path / "health.json").stat().st_mode & 0o777 == 0o600
    after = Rig(tmp_path)
    await after.part.load()
    assert after.causes() == ["xidReset"]
    assert after.part.fences(NODE).slices(GPU) == 0xF0
    assert (after.reported(), after.changes) == ([], 0)
    after.uptime += 100.0
    after.xid(95, instance=2)
    assert after.part.state.xids[0].count == 2


async def test_a_reboot_ends_them_before_anything_is_planned(tmp_path: Path) -> None:
    """By the boot id, before the first reading."""
    rig = Rig(tmp_path)
    async with rig.running():
        rig.see()
        rig.xid(79)
    after = Rig(tmp_path, boot="boot-2")
    await after.part.load()
    assert after.causes() == []
    assert [kind for kind, _ in after.reported()] == ["GpuRecovered"]


async def test_a_damaged_file_is_logged_and_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Health begins anew, and the file is written again."""
    (tmp_path / "health.json").write_text('{"version": 1')
    rig = Rig(tmp_path)
    async with rig.running():
        assert (tmp_path / "health.json.unusable-1").exists()
    assert (tmp_path / "health.json").read_text().endswith("}")
    assert "health.json cannot be used: its content is not understood" in capsys.readouterr().out


async def test_a_full_disk_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be kept counts all the same; it is tried again at the end, and logged once."""
    (tmp_path / "file").write_text("")
    rig = Rig(tmp_path, state=tmp_path / "file" / "health.json")
    async with rig.running():
        rig.see()
        rig.xid(95)
        await until(lambda: rig.causes() == ["xidReset"])
    assert capsys.readouterr().out.count("cannot be kept") == 1


async def test_the_end_comes_while_it_is_written(tmp_path: Path) -> None:
    """Whenever that is, the newest is what is kept."""
    for number in range(20):
        rig = Rig(tmp_path, state=tmp_path / f"{number}.json")
        async with rig.running():  # which writes the boot's id at once
            rig.see()
            rig.xid(95)
        after = Rig(tmp_path, state=tmp_path / f"{number}.json")
        await after.part.load()
        assert after.causes() == ["xidReset"]


# --- the table of XIDs ----------------------------------------------------------------------------


async def test_ones_own_classes_count_and_clear(tmp_path: Path) -> None:
    """An XID of another class raises nothing, and what it raised before is over at the start."""
    rig = Rig(tmp_path)
    async with rig.running():
        rig.see()
        rig.xid(95)
        rig.xid(62)
    table = tmp_path / "xids.yaml"
    table.write_text("version: v1\nxids:\n- {xid: 95, class: information}\n")
    after = Rig(tmp_path, xids=table)
    await after.part.load()
    assert [finding.code for finding in after.part.state.findings] == [62]
    assert "cleared by hand" in after.reported()[0][1]
    after.xid(95)
    assert [finding.code for finding in after.part.state.findings] == [62]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: v1\nxids:\n- {xid: 95, class: deadly}\n", "there is no class 'deadly' (line 3"),
        ("version: v1\n", "xids must be a list"),
        (None, "No such file"),
    ],
)
async def test_a_table_that_is_not_accepted(tmp_path: Path, text: str | None, said: str) -> None:
    """The agent does not start with it; the error names the setting, the file and the line."""
    table = tmp_path / "xids.yaml"
    if text is not None:
        table.write_text(text)
    with pytest.raises(UsageError) as caught:
        await Rig(tmp_path, xids=table).part.load()
    assert str(caught.value).startswith(f"health.xids: {table}")
    assert said in str(caught.value)


# --- the kernel log -------------------------------------------------------------------------------


def _line(number: int, *, sequence: int, at: float) -> bytes:
    record = f"3,{sequence},{int(at * 1e6)},-;NVRM: Xid (PCI:0000:1a:00): {number}, pid=1, name=x\n"
    return record.encode()


async def test_the_kernel_log_is_the_second_source(tmp_path: Path) -> None:
    """Its lines count when the GPU of the address is known; what NVML reported too counts once."""
    os.mkfifo(tmp_path / "kmsg")
    kernel = os.open(tmp_path / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    rig = Rig(tmp_path, kernel_log=tmp_path / "kmsg")
    os.write(kernel, _line(62, sequence=7, at=990.0))
    async with rig.running():
        await asyncio.sleep(0.02)
        assert rig.causes() == []  # whose it is, is not known yet
        rig.see()
        await until(lambda: rig.causes() == ["xidReset"])
        assert rig.part.state.findings[0].place.gpu == GPU
        rig.xid(95)
        os.write(kernel, _line(95, sequence=8, at=rig.uptime))
        await until(lambda: rig.part.state.kernel_log_read == 8)
        assert [(c.xid, c.count) for c in rig.part.state.xids] == [(62, 1), (95, 1)]
    os.write(kernel, _line(62, sequence=7, at=990.0) + _line(94, sequence=9, at=1001.0))
    after = Rig(tmp_path, kernel_log=tmp_path / "kmsg")
    async with after.running():
        await until(lambda: after.part.state.kernel_log_read == 9)
        assert [(c.xid, c.count) for c in after.part.state.xids] == [(62, 1), (95, 1), (94, 1)]
    os.close(kernel)


async def test_what_was_long_before_the_first_agent_of_a_boot(tmp_path: Path) -> None:
    """It may have been mended since: what lasts is measured, what is older is not reported."""
    os.mkfifo(tmp_path / "kmsg")
    kernel = os.open(tmp_path / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    rig = Rig(tmp_path, kernel_log=tmp_path / "kmsg")
    os.write(kernel, _line(62, sequence=1, at=300.0) + _line(95, sequence=2, at=500.0))
    async with rig.running():
        rig.see()
        await until(lambda: bool(rig.part.state.xids))
        assert [count.xid for count in rig.part.state.xids] == [95]
    os.close(kernel)


async def test_without_a_kernel_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is missing is logged once, and the rest goes on."""
    rig = Rig(tmp_path, kernel_log=tmp_path / "kmsg")
    async with rig.running():
        rig.see()
        rig.xid(95)
        await until(lambda: rig.causes() == ["xidReset"])
    assert capsys.readouterr().out.count("kmsg cannot be opened") == 1
