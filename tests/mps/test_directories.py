import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.files.open_directory import PathRefused
from nodeagent.mps.files import directories
from nodeagent.mps.files.sockets import DaemonSockets
from tests.fuse import can_mount, silent_file_system
from tests.mps.conftest import PYTHON, as_root
from tests.processes.real import ready_process

GPU = "GPU-0a1b2c3d-0000-1111-2222-333344445555"
ME, MINE = os.geteuid(), os.getegid()
OTHER = 1000


@pytest.fixture
def run_dir(short: Path) -> Path:
    return short / "run"


def mode(path: str | Path) -> str:
    found = Path(path).stat()
    return f"{stat.S_IMODE(found.st_mode):o} {found.st_uid}:{found.st_gid}"


def beside(pipe: str, name: str) -> Path:
    return Path(pipe).with_name(name)


@as_root
@pytest.mark.parametrize("name", ["pipe", "log", "shm"])
def test_an_agent_that_was_killed_while_it_made_them(run_dir: Path, name: str) -> None:
    """A directory that was not given to its user yet is given to it now, but for one with content:
    who put that there is not known.
    """
    made = directories.make_directories(run_dir, GPU, uid=4711, gid=4712, shm=True)
    before = mode(beside(made, name))
    beside(made, name).rmdir()
    beside(made, name).mkdir(mode=0o700)
    assert directories.make_directories(run_dir, GPU, uid=4711, gid=4712, shm=True) == made
    assert mode(beside(made, name)) == before
    os.chown(beside(made, "log"), 0, 0)
    beside(made, "log").chmod(0o700)
    (beside(made, "log") / "whose").touch()
    with pytest.raises(PathRefused, match="log belongs to user 0, not 4711"):
        directories.make_directories(run_dir, GPU, uid=4711, gid=4712)


@as_root
def test_made_for_their_user(run_dir: Path) -> None:
    umask = os.umask(0o077)
    try:
        found = directories.make_directories(run_dir, GPU, uid=OTHER, gid=100, shm=True)
    finally:
        os.umask(umask)
    assert found == f"{run_dir}/mps/{GPU}/pipe"
    for path in (run_dir, run_dir / "mps", run_dir / "mps" / GPU):
        assert mode(path) == f"755 0:{MINE}"
    assert mode(found) == "755 1000:100"
    assert mode(beside(found, "log")) == "750 1000:100"
    assert mode(beside(found, "shm")) == "1777 1000:100"


def test_a_volume_that_everyone_can_write(run_dir: Path) -> None:
    run_dir.mkdir()
    run_dir.chmod(0o2777)
    with pytest.raises(PathRefused, match=r"can be written by others \(mode 2777\)"):
        directories.make_directories(run_dir, GPU, uid=ME, gid=MINE)
    assert not list(run_dir.iterdir())
    made = directories.make_directories(run_dir / "own", GPU, uid=ME, gid=MINE)
    assert mode(run_dir / "own") == f"755 {ME}:{MINE}"
    assert mode(made) == f"755 {ME}:{MINE}"


def test_made_again(run_dir: Path) -> None:
    found = directories.make_directories(run_dir, GPU, uid=ME, gid=MINE)
    (beside(found, "log") / "control.log").write_text("kept")
    Path(found).chmod(0o777)
    assert directories.make_directories(run_dir, GPU, uid=ME, gid=MINE) == found
    assert (beside(found, "log") / "control.log").read_text() == "kept"
    assert mode(found) == f"755 {ME}:{MINE}"


@pytest.mark.parametrize(
    ("run_dir_text", "device", "reason"),
    [
        ("/run/x", "../../etc", "makes no directory name"),
        ("/run/x", "GPU-1/../..", "makes no directory name"),
        ("/run/x", "GPU-1\nGPU-2", "makes no directory name"),
        ("/run/x", "MIG-GPU-0/7/0", "makes no directory name"),
        ("/run/x/../y", GPU, "not an absolute path without"),
        ("run/x", GPU, "not an absolute path without"),
        ("/run/x\ny", GPU, "characters that would break"),
        ("/run/x:y", GPU, "characters that would break"),
        (directories.DEFAULT_DIRECTORIES[1], GPU, "default directory of MPS"),
        ("/tmp/nvidia-mps/x", GPU, "default directory of MPS"),
        ("/" + "x" * 60, GPU, r"has \d+ bytes, a socket's path at most 107"),
        ("/" + "ä" * 30, GPU, r"has \d+ bytes, a socket's path at most 107"),
    ],
)
def test_no_place_for_sockets(run_dir_text: str, device: str, reason: str) -> None:
    with pytest.raises(PathRefused, match=reason) as caught:
        directories.make_directories(Path(run_dir_text), device, uid=ME, gid=MINE)
    assert caught.value.remedy


def test_the_longest_path() -> None:
    """To the byte: one more, and the daemon would end without a word."""
    rest = len(f"/mps/{GPU}/pipe/control_privileged")
    run_dir = Path("/" + "x" * (directories.MAX_SOCKET_PATH - rest - 1))
    socket = f"{directories.pipe_directory(run_dir, GPU)}/control_privileged"
    assert len(socket) == directories.MAX_SOCKET_PATH
    with pytest.raises(PathRefused):
        directories.pipe_directory(Path(f"{run_dir}x"), GPU)


@pytest.mark.parametrize("place", ["", "mps", f"mps/{GPU}", f"mps/{GPU}/pipe", f"mps/{GPU}/shm"])
def test_a_link_in_the_way(run_dir: Path, place: str) -> None:
    (run_dir / place).parent.mkdir(parents=True, exist_ok=True)
    (run_dir / place).symlink_to("/tmp")
    with pytest.raises(PathRefused, match="is a symlink") as caught:
        directories.make_directories(run_dir, GPU, uid=ME, gid=MINE, shm=True)
    assert str(run_dir / place) in caught.value.message


@as_root
@pytest.mark.parametrize("place", ["mps", f"mps/{GPU}/log"])
def test_foreign_owner(run_dir: Path, place: str) -> None:
    """The owner could put anything there."""
    (run_dir / place).mkdir(parents=True)
    os.chown(run_dir / place, 4711, -1)
    with pytest.raises(PathRefused, match="belongs to user 4711") as caught:
        directories.make_directories(run_dir, GPU, uid=OTHER, gid=OTHER)
    assert str(run_dir / place) in caught.value.message


@as_root
def test_whose_a_link_is(run_dir: Path) -> None:
    """Its own owner's, not that of where it leads: by it is known whose servers may be ended."""
    made = Path(directories.make_directories(run_dir, GPU, uid=OTHER, gid=OTHER))
    made.with_name("led").symlink_to("log")
    assert directories.owner_of(str(made.with_name("log"))) == OTHER
    assert directories.owner_of(str(made.with_name("led"))) == ME


@as_root
def test_a_parent_that_the_user_may_not_pass(run_dir: Path) -> None:
    """Its servers would end at once and say nothing."""
    run_dir.parent.chmod(0o700)
    with pytest.raises(PathRefused, match=f"user 1000 may not pass {run_dir.parent}"):
        directories.make_directories(run_dir, GPU, uid=OTHER, gid=OTHER)
    directories.make_directories(run_dir, GPU, uid=0, gid=0)


@pytest.mark.skipif(ME == 0, reason="root may give directories to anyone")
def test_without_the_right_to_give(run_dir: Path) -> None:
    with pytest.raises(PathRefused, match="run as root"):
        directories.make_directories(run_dir, GPU, uid=OTHER, gid=OTHER)
    assert not (run_dir / "mps" / GPU / "pipe").exists()


@pytest.mark.skipif(not can_mount(), reason="needs root and /dev/fuse")
@pytest.mark.parametrize("name", ["pipe", "log"])
def test_removed_with_what_its_user_mounted_on_it(run_dir: Path, name: str) -> None:
    """fusermount lets each user do so on its own directories, and root may not look into it."""
    made = directories.make_directories(run_dir, GPU, uid=OTHER, gid=OTHER)
    with silent_file_system(beside(made, name), OTHER):
        directories.remove_directories(run_dir, GPU)
        made = directories.make_directories(run_dir, GPU, uid=4711, gid=4711)
        assert mode(beside(made, "log")) == "750 4711:4711"
    directories.remove_directories(run_dir, GPU)
    assert list((run_dir / "mps").rglob("*")) == [run_dir / "mps/.aside"]


@pytest.mark.skipif(not can_mount(), reason="needs root and /dev/fuse")
def test_what_is_mounted_on_it_is_not_sealed(run_dir: Path) -> None:
    """Its owner would say what that looks like."""
    pipe = directories.make_directories(run_dir, GPU, uid=OTHER, gid=OTHER)
    with silent_file_system(Path(pipe), OTHER), pytest.raises(OSError, match="another file system"):
        directories.seal_pipe_directory(pipe)


@as_root
def test_what_all_users_could_fill_is_not_there(run_dir: Path) -> None:
    """Neither a /dev/shm that nothing uses, nor a lock file that all may write, as daemons make."""
    made = directories.make_directories(run_dir, GPU, uid=OTHER, gid=OTHER)
    assert not beside(made, "shm").exists()
    lock = Path(made) / "control_lock"
    lock.touch()
    lock.chmod(0o666)
    directories.seal_pipe_directory(made)
    assert mode(lock) == f"644 0:{MINE}"


def test_removed_while_another_thread_removes(run_dir: Path) -> None:
    """As the environment files of a stopped device go: all of it goes all the same, for a record
    that stayed would bring its daemon back.
    """
    top = Path(directories.make_directories(run_dir, GPU, uid=ME, gid=MINE)).parent
    (top / "record.json").touch()
    files = [top / "env" / f"{number:04}" for number in range(1500)]
    files[0].parent.mkdir()
    for file in files:
        file.touch()

    def remove_files() -> None:
        for file in reversed(files):
            file.unlink(missing_ok=True)

    other = threading.Thread(target=remove_files)
    other.start()
    try:
        directories.remove_directories(run_dir, GPU)
    finally:
        other.join()
    assert list((run_dir / "mps").iterdir()) == []


@as_root
def test_removed_whatever_its_user_put_there(run_dir: Path) -> None:
    outside = run_dir.parent / "outside"
    outside.mkdir()
    (outside / "file").touch()
    made = directories.make_directories(run_dir, GPU, uid=OTHER, gid=OTHER, shm=True)
    script = (
        "import os, sys\n"
        "os.chdir(sys.argv[1])\n"
        "os.symlink(sys.argv[2], 'link')\n"
        "os.makedirs('lifted-0/lifted-1'); open('lifted-2', 'w'); os.mkdir('closed', 0)\n"
        "for _ in range(2100):\n"
        "    os.mkdir('d'); os.chdir('d')\n"
        "os.symlink(sys.argv[2], 'link'); open('file', 'w')\n"
        "print(flush=True)\n"
        "while True:\n"
        "    try: os.mkdir('more'); os.rmdir('more'); os.mkdir('more')\n"
        "    except OSError: pass\n"
    )
    command = (PYTHON, "-IS", "-c", script, beside(made, "shm"), outside)
    with ready_process(*command, user=OTHER, group=OTHER):
        directories.remove_directories(run_dir, GPU)
    assert list((run_dir / "mps").iterdir()) == []
    assert (outside / "file").exists()


# --- socket gate ----------------------------------------------------------------------------------


NAMES = ("control", "control_privileged")


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    made = tmp_path / "pipe"
    made.mkdir()
    return made


@pytest.fixture
def listening(pipe: Path) -> Iterator[socket.socket]:
    (pipe / "control_privileged").touch()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(pipe / "control"))
        listener.listen()
        yield listener


def reachable(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        return client.connect_ex(str(path)) == 0


@pytest.mark.parametrize("moved", NAMES)
def test_half_of_it(pipe: Path, listening: socket.socket, moved: str) -> None:
    """A crash between two renames is mended in either direction."""
    for hidden in (False, True):
        door = DaemonSockets(str(pipe))
        door.keep(hidden=False)
        (pipe.with_name("back")).mkdir(exist_ok=True)
        (pipe / moved).rename(pipe.with_name("back") / moved)
        door.keep(hidden=hidden)
        assert [(Path(door.directory) / name).exists() for name in NAMES] == [True, True]


def test_a_later_daemon_keeps_its_sockets(pipe: Path, listening: socket.socket) -> None:
    door = DaemonSockets(str(pipe))
    door.keep(hidden=True)
    for name in NAMES:
        (pipe / name).write_text("new")
    door.keep(hidden=False)
    assert [(pipe / name).read_text() for name in NAMES] == ["new", "new"]
    assert not door.hidden


def test_without_a_place_to_go_back_to(pipe: Path, listening: socket.socket) -> None:
    door = DaemonSockets(str(pipe))
    door.keep(hidden=True)
    pipe.rmdir()
    door.keep(hidden=False)
    assert (door.hidden, door.listens) == (False, False)
    pipe.mkdir()
    (pipe / "control").touch()
    door.clear()
    door.clear()
    assert not door.listens
