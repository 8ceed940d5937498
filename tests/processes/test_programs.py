"""A program of the administrator's or the driver's, run to its end."""

import os
import signal
import subprocess
import sys
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


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a program `bin/tool`, links to it, and a script beside it."""
    folder = tmp_path / "here"
    for name in ("bin", "via", "other"):
        (folder / name).mkdir(parents=True, mode=0o755)
    for name, mode in (("bin/tool", 0o755), ("script", 0o644)):
        (folder / name).write_text("echo done\n" if mode == 0o644 else "#!/bin/sh\necho done\n")
        (folder / name).chmod(mode)
    (folder / "other" / "bin").symlink_to("../bin")
    (folder / "via" / "tool").symlink_to(folder / "other" / "bin" / "tool")
    return folder


@pytest.mark.parametrize(
    ("modes", "mended"),
    [
        ({"bin": 0o755, "bin/tool": 0o755}, ""),
        ({"bin/tool": 0o757}, "chmod go-w {}/bin/tool"),
        ({"bin/tool": 0o1757}, "chmod go-w {}/bin/tool"),
        ({"bin": 0o757}, "chmod go-w {}/bin"),
        ({".": 0o777}, "chmod go-w {}"),
        ({"bin": 0o1777}, ""),  # there nobody may replace another's
        ({"bin": 0o775, "bin/tool": 0o775}, ""),  # a group of ours
        ({"other": 0o777}, "chmod go-w {}/other"),  # which the link `via/tool` leads through
        ({"via": 0o777}, "chmod go-w {}/via"),
    ],
)
async def test_a_program_that_others_can_write(
    here: Path, modes: dict[str, int], mended: str
) -> None:
    """It is not run, by its path, by a link or by PATH, and the error has what mends it."""
    for name, mode in modes.items():
        (here / name).chmod(mode)
    for command, path in ((f"{here}/via/tool", ""), ("tool", f"/no:{here}/via")):
        with pytest.raises(PermissionError) if mended else nullcontext() as refused:
            assert (await run_program([command], {"PATH": path}, deadline=60.0))[1] == "done\n"
        assert refused is None or f"`{mended.format(here)}`" in str(refused.value)


@pytest.mark.parametrize(
    "command",
    [
        "/bin/sh {}/script",
        "/bin/sh -e {}/script x",
        "/usr/bin/env -i /bin/sh {}/script",
        "nsenter --target {pid} --mount -- /bin/sh {}/script",
        "nsenter -t {pid} -m sh {}/script",
        "nsenter --target {pid} --net -- sh {}/script",
        "nsenter -t{pid} -m -- /bin/sh {}/script",  # the script is looked for here, too
    ],
)
async def test_a_script_that_others_can_write(here: Path, command: str) -> None:
    """What it is given to counts as it: a shell, or a program that runs another."""
    words = command.format(here, pid=os.getpid()).split()
    environment = {"PATH": "/usr/bin:/bin"}
    if words[0] != "nsenter" or os.geteuid() == 0:  # which only root may
        assert (await run_program(words, environment, deadline=60.0))[1] == "done\n"
    (here / "script").chmod(0o646)
    entered = {"-m", "--mount"} & {*words} and str(os.getpid()) in words
    below = f"/proc/{os.getpid()}/root" if entered else ""
    with pytest.raises(PermissionError, match=f"`chmod go-w {below}{here}/script`, or keep"):
        await run_program(words, environment, deadline=60.0)


@pytest.mark.parametrize(
    ("command", "judged"),
    [("tool", "via/tool"), ("/via/tool", "via/tool"), ("nothing /script", "script")],
)
async def test_what_chroot_runs_is_judged_below_its_folder(
    here: Path, command: str, judged: str
) -> None:
    """Absolute links lead below it, too, `..` not above it, and its folder counts."""
    (here / "via" / "tool").unlink()
    (here / "via" / "tool").symlink_to("/../../other/bin/tool")
    (here / "via" / "circle").symlink_to("/via/circle")
    words = ["chroot", str(here), *command.split(), "/via/circle"]

    async def why_refused() -> str:
        """Without a shell below the folder it cannot run, be it ours or not."""
        try:
            await run_program(words, {"PATH": "/usr/sbin:/usr/bin:/via"}, deadline=60.0)
        except PermissionError as error:
            return str(error)
        return ""

    assert not await why_refused()
    writable = here / "other" if judged == "via/tool" else here / judged
    for place in (writable, here, here.parent):
        place.chmod(place.stat().st_mode | 0o002)
        assert f"`chmod go-w {place}`" in await why_refused()
        place.chmod(place.stat().st_mode & ~0o002)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("user", [1000, 65534])
async def test_a_program_of_another_user(user: int, tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    os.chown(tool, user, 0)
    with pytest.raises(PermissionError, match=f"`chown root {tool}`, or keep it elsewhere"):
        await run_program([str(tool)], {}, deadline=60.0)


def test_files_of_users_whom_a_user_namespace_hides() -> None:
    """They may be anybody's, and nobody in it can change that."""
    inside = ("unshare", "--user")
    if subprocess.run([*inside, "true"], check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no user namespace can be made here")
    program = "from nodeagent.programs import require_own; require_own(['/bin/true'], None)"
    ended = subprocess.run(
        [*inside, sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert "namespace does not have: run the agent outside of it, or keep" in ended.stderr
    assert "chown" not in ended.stderr
