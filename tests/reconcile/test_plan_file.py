"""The plan file as people and programs write it, and what is offered of it."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.reconcile.plan_file import PlanFile
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from tests.cluster.client.rig import running
from tests.machine_load import until

ONE, TWO = b"version: v1\ngpus: []\n", b"version: v1\ngpus:\n- devices: all\n"


class Source:
    def __init__(self, path: Path) -> None:
        self.offers: list[PlanUpdate] = []
        self.file = PlanFile(path, self.offers.append, quiet=0.02, recheck_every=None)

    async def next(self, count: int) -> PlanUpdate:
        """Wait until so many offers were made."""
        await until(lambda: len(self.offers) >= count)
        return self.offers[count - 1]


@asynccontextmanager
async def watching(path: Path) -> AsyncIterator[Source]:
    source = Source(path)
    async with running(source.file.run()):
        await source.next(1)
        yield source


def rewrite_in_place(path: Path) -> None:
    """Truncate and write, as a shell's redirection does."""
    path.write_bytes(TWO)


def replace_by_rename(path: Path) -> None:
    """Write beside it and rename, as most programs do."""
    new = path.with_name(".plan.swp")
    new.write_bytes(TWO)
    new.replace(path)


def replace_as_vim_does(path: Path) -> None:
    """Rename the old one away, write a new one, delete the old."""
    path.rename(path.with_name("plan.yaml~"))
    path.write_bytes(TWO)
    path.with_name("plan.yaml~").unlink()


def delete_and_write(path: Path) -> None:
    path.unlink()
    path.write_bytes(TWO)


def link_another(path: Path) -> None:
    """Put a hard link to another file there."""
    other = path.with_name("other.yaml")
    other.write_bytes(TWO)
    path.unlink()
    path.hardlink_to(other)


def symlink_another(path: Path) -> None:
    other = path.with_name("other.yaml")
    other.write_bytes(TWO)
    link = path.with_name("link")
    link.symlink_to("other.yaml")
    link.replace(path)


def move_from_elsewhere(path: Path) -> None:
    other = path.parent.parent / "elsewhere.yaml"
    other.write_bytes(TWO)
    subprocess.run(["mv", other, path], check=True)


@pytest.mark.parametrize(
    "save",
    [
        rewrite_in_place,
        replace_by_rename,
        replace_as_vim_does,
        delete_and_write,
        link_another,
        symlink_another,
        move_from_elsewhere,
    ],
)
async def test_notices_every_way_of_saving(tmp_path: Path, save: Callable[[Path], None]) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    path = folder / "plan.yaml"
    path.write_bytes(ONE)
    async with watching(path) as source:
        save(path)
        assert await source.next(2) == PlanText(TWO)
        await asyncio.sleep(0.1)
        assert source.offers == [PlanText(ONE), PlanText(TWO)]


async def test_does_not_read_a_file_that_is_being_written(tmp_path: Path) -> None:
    """Half of a document can be a valid document: only a closed file is read."""
    path = tmp_path / "plan.yaml"
    async with watching(path) as source:
        with path.open("wb") as file:
            file.write(ONE)
            file.flush()
            await asyncio.sleep(0.1)
            assert len(source.offers) == 1
            file.write(b"# the rest\n")
        assert await source.next(2) == PlanText(ONE + b"# the rest\n")


async def test_follows_a_mounted_configmap(tmp_path: Path) -> None:
    """The kubelet swaps a link in the middle of the path; the file itself never changes."""
    first, second = tmp_path / "..2030_01", tmp_path / "..2030_02"
    for folder, text in ((first, ONE), (second, TWO)):
        folder.mkdir()
        (folder / "plan.yaml").write_bytes(text)
    (tmp_path / "..data").symlink_to("..2030_01")
    path = tmp_path / "plan.yaml"
    path.symlink_to("..data/plan.yaml")
    async with watching(path) as source:
        for target, text, count in ((second, TWO, 2), (first, ONE, 3)):
            (tmp_path / "..data_tmp").symlink_to(target.name)
            (tmp_path / "..data_tmp").replace(tmp_path / "..data")
            assert await source.next(count) == PlanText(text)


async def test_waits_for_folders_that_are_not_there_yet(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "plan.yaml"
    async with watching(path) as source:
        [missing] = source.offers
        assert isinstance(missing, NoPlan)
        assert missing.reason == f"the plan file {path} does not exist"
        assert missing.problem is not None
        assert str(path) in missing.problem.remedy
        path.parent.parent.mkdir()
        await asyncio.sleep(0.05)
        path.parent.mkdir()
        path.write_bytes(ONE)
        assert await source.next(2) == PlanText(ONE)


async def test_a_folder_taken_away_and_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    path = folder / "plan.yaml"
    path.write_bytes(ONE)
    async with watching(path) as source:
        path.unlink()
        folder.rmdir()
        assert isinstance(await source.next(2), NoPlan)
        folder.mkdir()
        path.write_bytes(TWO)
        assert await source.next(3) == PlanText(TWO)


async def test_the_same_content_state_is_not_offered_twice(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_bytes(ONE)
    async with watching(path) as source:
        (tmp_path / "other").write_bytes(TWO)
        await source.file.refresh()
        await asyncio.sleep(0.1)
        assert source.offers == [PlanText(ONE)]


async def test_a_named_pipe_does_not_hang_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    os.mkfifo(path)
    async with watching(path) as source:
        offer = source.offers[0]
        assert isinstance(offer, UnreadablePlan)
        assert "not a regular file" in offer.problem.message


async def test_reads_no_more_than_can_be_accepted(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)
    async with watching(path) as source:
        offer = source.offers[0]
        assert isinstance(offer, PlanText)
        assert len(offer.text) == 2**20


async def test_carries_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(ONE)
    offers: list[PlanUpdate] = []
    await PlanFile(path, offers.append, configuration="all-1g.10gb").refresh()
    assert offers == [PlanText(ONE, "all-1g.10gb")]


async def test_what_cannot_be_read_is_tried_again(tmp_path: Path) -> None:
    """Too many open files or a failing disk may pass, though nothing of the file changes; until
    then no attempt takes a descriptor.
    """
    path = tmp_path / "plan.yaml"
    path.mkdir()
    source = Source(path)
    await source.file.refresh()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count is all
    for name in "aabb":
        (path / name).touch()
        await source.file.refresh()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above
    assert [type(offer) for offer in source.offers] == [UnreadablePlan] * 5
