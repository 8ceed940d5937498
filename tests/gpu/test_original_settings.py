import json
import threading
from pathlib import Path

import pytest

from nodeagent.errors import NodeagentError
from nodeagent.files.state import StateFormat, write_state
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.original_settings import FILE_NAME, OriginalSettings
from nodeagent.plan.observed import Access, DeviceDaemon, Gpu
from nodeagent.plan.shares import Account, ComputeMode, Share, Sharing, TimeSlice, WantedMps
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.structs import replace
from tests.gpu.steps_of import compute_mode, destroy, laid_out

GPU, MIG = "GPU-0a1b2c3d-0000-1111-2222-333344445555", "MIG-0a1b2c3d-0000-1111-2222-333344445555"
DEFAULT, EXCLUSIVE = ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS
WANTED = WantedMps(Sharing((Share("all", 2, None, 50.0),), "report"), Account(1000, 1000))
DAEMON = DeviceDaemon(WANTED, "Ready")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lib" / FILE_NAME


def written(path: Path) -> object:
    return json.loads(path.read_text().split("\n", 1)[1])


def test_what_is_forgotten_is_gone(path: Path) -> None:
    remembered = OriginalSettings(path)
    remembered.remember(GPU, DEFAULT)
    remembered.remember(GPU, TimeSlice.LONG)
    remembered.forget(GPU, ComputeMode)
    assert OriginalSettings(path).mode(GPU) is None
    assert OriginalSettings(path).time_slice(GPU) is TimeSlice.LONG
    remembered.forget(GPU, TimeSlice)
    assert written(path) == {}
    remembered.remember(GPU, EXCLUSIVE)
    assert OriginalSettings(path).mode(GPU) is EXCLUSIVE


def test_devices_that_went_are_pruned(path: Path) -> None:
    """A MIG device that is made anew has the same UUID, but a mode of its own."""
    remembered = OriginalSettings(path)
    remembered.remember(GPU, DEFAULT)
    remembered.remember(MIG, EXCLUSIVE)
    remembered.prune({GPU})
    assert OriginalSettings(path).mode(GPU) is DEFAULT
    assert OriginalSettings(path).mode(MIG) is None


def test_threads_do_not_lose_each_others_words(path: Path) -> None:
    remembered = OriginalSettings(path)
    names = [f"GPU-{number}" for number in range(16)]
    threads = [threading.Thread(target=remembered.remember, args=(n, DEFAULT)) for n in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert written(path) == {name: {"computeMode": "default"} for name in names}
    assert [entry.name for entry in path.parent.iterdir()] == [FILE_NAME]


# --- a file that cannot be used -------------------------------------------------------------------


def hold(path: Path, content: bytes) -> None:
    """Write a file with this content and a checksum that is right."""
    write_state(path, StateFormat("earlier-modes", 1, 1 << 20, bytes, bytes), content)


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"GPU-1": {"computeMode": "sometimes"}}',
        b'{"GPU-1": {"computeMode": ["default"]}}',
        b'{"GPU-1": {"mode": "default"}}',
    ],
)
def test_a_damaged_file_is_set_aside(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    hold(path, content)
    whole = path.read_bytes()
    for remembered in (OriginalSettings(path, read_only=True), OriginalSettings(path)):
        assert remembered.file.problem is not None
        assert "is not understood" in remembered.file.problem.message
        assert "nvidia-smi" in remembered.file.problem.remedy
        assert remembered.mode("GPU-1") is None
    remembered.remember(GPU, DEFAULT)
    again = OriginalSettings(path)
    assert again.mode(GPU) is DEFAULT
    assert again.file.problem is not None  # what was lost is lost still
    assert path.with_name(f"{FILE_NAME}.unusable").read_bytes() == whole


def test_what_cannot_be_written_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "lib").write_text("no folder")
    remembered = OriginalSettings(tmp_path / "lib" / FILE_NAME)
    assert remembered.file.problem is not None  # not a directory
    remembered.prune(())
    other = tmp_path / "other" / FILE_NAME
    remembered = OriginalSettings(other)
    (tmp_path / "other").write_text("no folder")
    with pytest.raises(NodeagentError, match=r"cannot be kept in .*are not restored"):
        remembered.remember(GPU, DEFAULT)
    assert remembered.mode(GPU) is None


# --- what is so again -----------------------------------------------------------------------------


def gpu(mode: ComputeMode | None, time_slice: TimeSlice | None = None) -> Gpu:
    return Gpu(0, GPU, compute_mode=mode, time_slice=time_slice)


@pytest.mark.parametrize(
    ("seen", "kept"),
    [
        (gpu(DEFAULT), False),
        (gpu(EXCLUSIVE), True),
        (gpu(None), True),
        (replace(gpu(DEFAULT), mps=DAEMON), True),
        (replace(gpu(DEFAULT), access=Access.UNKNOWN), True),
    ],
)
def test_a_mode_that_is_as_before_is_forgotten(path: Path, seen: Gpu, kept: bool) -> None:
    OriginalSettings(path).remember(GPU, DEFAULT)
    OriginalSettings(path).settle([seen])
    assert (OriginalSettings(path).mode(GPU) is DEFAULT) is kept


def test_a_change_that_is_about_to_come_is_not_settled(path: Path) -> None:
    """Another program may look at the node between the memory and the change."""
    remembered = OriginalSettings(path)
    before = gpu(DEFAULT, TimeSlice.DEFAULT)
    remembered.remember(GPU, DEFAULT)
    remembered.remember(GPU, TimeSlice.DEFAULT)
    remembered.settle([before])
    assert (remembered.mode(GPU), remembered.time_slice(GPU)) == (DEFAULT, TimeSlice.DEFAULT)
    remembered.settle([gpu(EXCLUSIVE, TimeSlice.LONG)])
    remembered.settle([before])
    assert (remembered.mode(GPU), remembered.time_slice(GPU)) == (None, None)


# --- with a driver --------------------------------------------------------------------------------


@pytest.mark.parametrize("crash", ["before the change", "before the way back", "after it"])
async def test_a_crash_at_any_point_leaves_what_is_needed(path: Path, crash: str) -> None:
    with simulated("h100-80gb:1") as node:
        first = Driver(observe_deadline=30, step_deadline=30, original=OriginalSettings(path))
        async with first as driver:
            before = await laid_out(driver, 0, at0="1g.10gb")
            device = before.instances[0].compute[0]
            if crash == "before the change":
                driver.original.remember(device.uuid, DEFAULT)
            else:
                await driver.apply(compute_mode(before, EXCLUSIVE, device))
            if crash == "after it":
                node.cards[0].state.instances[0].compute[0].compute_mode = 0
        second = Driver(observe_deadline=30, step_deadline=30, original=OriginalSettings(path))
        async with second as driver:
            found = (await driver.observe()).gpus
            assert found[0].instances[0].compute[0].earlier_mode is DEFAULT
            driver.original.settle(found)
            earlier = driver.original.mode(device.uuid)
            assert earlier is (DEFAULT if crash == "before the way back" else None)
            if earlier is not None:
                await driver.apply(compute_mode(before, earlier, device))
            assert _mode(node) == 0
            assert OriginalSettings(path).mode(device.uuid) is None


async def test_a_destruction_is_done_though_it_cannot_be_noted(path: Path) -> None:
    """On a full disk the step would else fail, and what was destroyed be made again."""
    with simulated("h100-80gb:1"):
        async with Driver(
            observe_deadline=30, step_deadline=30, original=OriginalSettings(path)
        ) as driver:
            before = await laid_out(driver, 0, at0="1g.10gb")
            [instance] = before.instances
            await driver.apply(compute_mode(before, EXCLUSIVE, instance.compute[0]))
            _make_unwritable(path)
            await driver.apply(destroy(before, instance))
            assert driver.original.file.problem is not None


def _make_unwritable(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()
    path.parent.touch()


def _mode(node: SimulatedNode) -> int:
    return node.cards[0].state.instances[0].compute[0].compute_mode
