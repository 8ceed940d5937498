"""A program of the administrator's or the driver's, run to its end."""

import os
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest

from nodeagent.programs import run_program


async def test_a_daemon_that_a_program_leaves_running_is_not_waited_for() -> None:
    command = ("/bin/sh", "-c", "sleep 600 & echo $!")
    status, said, _ = await run_program(command, {}, deadline=20.0)
    os.kill(int(said), signal.SIGKILL)
    assert status == 0


async def test_one_that_is_late_keeps_no_pipe_open_where_a_daemon_of_its_own_goes_on(
    tmp_path: Path,
) -> None:
    def pipes() -> list[str]:
        links = (str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.exists())
        return sorted(link for link in links if link.startswith("pipe:"))

    before, left = pipes(), tmp_path / "left"
    command = ("/bin/sh", "-c", f"setsid sleep 600 & echo $! > {left}; sleep 600")
    with pytest.raises(TimeoutError):
        await run_program(command, {}, deadline=0.5)
    os.kill(int(left.read_text()), signal.SIGKILL)
    assert pipes() == before


async def test_the_end_of_what_it_says_is_kept() -> None:
    command = ("/bin/sh", "-c", "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); echo $i; done; exit 3")
    status, said, _ = await run_program(command, {}, deadline=60.0)
    assert (status, said.split()[-1], len(said)) == (3, "30000", 1 << 16)


@pytest.mark.parametrize(
    ("modes", "mended"),
    [
        ({"bin": 0o755, "bin/tool": 0o755}, ""),
        ({"bin/tool": 0o757}, "chmod go-w {}/bin/tool"),
        ({"bin": 0o757}, "chmod go-w {}/bin"),
        ({".": 0o777}, "chmod go-w {}"),
        ({"bin": 0o1777}, ""),  # there nobody may replace another's
        ({"bin": 0o775, "bin/tool": 0o775}, ""),  # a group of ours
        ({"other": 0o777}, "chmod go-w {}/other"),  # which the link `via/tool` leads through
        ({"via": 0o777}, "chmod go-w {}/via"),
    ],
)
async def test_a_program_that_others_can_write(
    tmp_path: Path, modes: dict[str, int], mended: str
) -> None:
    """It is not run, by its path, by a link or by PATH, and the error has what mends it."""
    folder = tmp_path / "here"
    for name in ("bin", "via", "other"):
        (folder / name).mkdir(parents=True, mode=0o755)
    tool = folder / "bin" / "tool"
    tool.write_text("#!/bin/sh\necho done\n")
    tool.chmod(0o755)
    (folder / "other" / "bin").symlink_to("../bin")
    (folder / "via" / "tool").symlink_to(folder / "other" / "bin" / "tool")
    for name, mode in modes.items():
        (folder / name).chmod(mode)
    for command, path in ((f"{folder}/via/tool", ""), ("tool", f"/no:{folder}/via")):
        with pytest.raises(PermissionError) if mended else nullcontext() as refused:
            assert (await run_program([command], {"PATH": path}, deadline=60.0))[1] == "done\n"
        assert refused is None or f"`{mended.format(folder)}`" in str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
async def test_a_program_of_another_user(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    os.chown(tool, 1000, 0)
    with pytest.raises(PermissionError, match=f"`chown root {tool}`, or keep the program"):
        await run_program([str(tool)], {}, deadline=60.0)
