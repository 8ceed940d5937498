import asyncio
import os
import resource
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nodeagent.files.watch import changes, deciding_entries
from tests.machine_load import stretched


def test_every_link_on_the_way(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "file").touch()
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "link").symlink_to("../folder/../folder/file")
    (tmp_path / "plan").symlink_to(tmp_path / "deep" / "link")
    assert deciding_entries(tmp_path / "plan") == [
        (tmp_path, "plan"),
        (tmp_path / "deep", "link"),
        (tmp_path, "folder"),
        (tmp_path, "folder"),
        (real, "file"),
    ]


def test_ends_at_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("gone/plan.yaml")
    assert deciding_entries(tmp_path / "link") == [(tmp_path, "link"), (tmp_path, "gone")]


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert len(deciding_entries(tmp_path / "a")) < 50


async def test_looks_now_and_then_where_the_kernel_gives_no_watch(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    looks = 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        async with asyncio.timeout(stretched(30)):
            async for _ in changes(tmp_path / "plan", at_least_every=0.01):
                looks += 1
                if looks == 3:
                    break
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert looks == 3


async def test_yields_without_a_change_when_asked_to(tmp_path: Path) -> None:
    """For file systems whose changes the kernel does not see."""
    looks = 0
    async with asyncio.timeout(stretched(30)):
        async for _ in changes(tmp_path / "plan", quiet=0.001, at_least_every=0.01):
            looks += 1
            if looks == 3:
                break


async def _next(seen: AsyncIterator[None]) -> None:
    await anext(seen)


async def test_other_files_in_the_folder_are_no_change(tmp_path: Path) -> None:
    seen = changes(tmp_path / "plan")
    async with asyncio.timeout(stretched(30)):
        await anext(seen)
        following = asyncio.create_task(_next(seen))
        (tmp_path / "other").write_bytes(b"x")
        await asyncio.sleep(0.2)
        assert not following.done()
        (tmp_path / "plan").write_bytes(b"x")
        await following


def _watching() -> set[str]:
    files = (fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink())
    return {fd.name for fd in files if "inotify" in str(fd.readlink())}


async def test_a_change_closes_no_watch(tmp_path: Path) -> None:
    """To close one waits for the kernel, with the whole event loop."""
    spare = os.open("/dev/null", os.O_RDONLY)
    seen = changes(tmp_path / "plan")
    async with asyncio.timeout(stretched(30)):
        await anext(seen)
        before = _watching()
        os.close(spare)  # whatever is opened from now on has its number
        for content in (b"x", b"y"):
            following = asyncio.create_task(_next(seen))
            await asyncio.sleep(0)
            (tmp_path / "plan").write_bytes(content)
            await following
    assert _watching() == before


def test_a_link_that_is_replaced_while_it_is_looked_at() -> None:
    """What was a link a moment ago and cannot be read as one counts as not there."""
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        link = Path(f"/proc/{process.pid}/exe")  # of a zombie: a link that leads nowhere
        assert link.is_symlink()
        with pytest.raises(OSError, match="No such file"):
            link.readlink()
        assert deciding_entries(link) == [(link.parent, "exe")]
