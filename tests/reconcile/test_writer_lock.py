"""One writer per node."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.errors import NodeagentError
from nodeagent.reconcile.writer_lock import writer_lock
from tests.processes.real import ready_process

HOLD = """
import sys, time
from pathlib import Path
from nodeagent.reconcile.writer_lock import writer_lock
with writer_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""

# The kernel answers each flock with ENOLCK (37), by a filter of its system calls.
WITHOUT_LOCKS = """
import ctypes, struct, sys
from pathlib import Path
from nodeagent.errors import NodeagentError
from nodeagent.reconcile.writer_lock import writer_lock
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in (
    (0x20, 0, 0, 0), (0x15, 0, 1, int(sys.argv[1])), (0x06, 0, 0, 0x50025), (0x06, 0, 0, 0x7FFF0000)
)))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 == libc.prctl(22, 2, program)
try:
    writer_lock(*map(Path, sys.argv[2:])).__enter__()
except NodeagentError as error:
    print(error)
"""

OPEN_AS_TENANT = """
import os, sys
os.chdir(sys.argv[1])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
os.open(".", os.O_RDONLY)
"""


def test_a_second_writer_learns_who_the_first_is(tmp_path: Path) -> None:
    """The message names the pid; when the holder is killed, the lock is free."""
    path = tmp_path / "run" / "writer.lock"
    with ready_process(sys.executable, "-c", HOLD, path) as holder:
        with pytest.raises(NodeagentError, match=f"process {holder.pid} already") as caught:
            writer_lock(path).__enter__()
        assert f"`kill {holder.pid}`" in caught.value.remedy
    with writer_lock(path):
        assert path.read_text().strip() == str(os.getpid())


def test_a_full_disk_lets_the_writer_in(tmp_path: Path) -> None:
    """That its pid cannot be written is no reason; a tenant can fill /run (docs/security.md)."""
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n" + HOLD
    words, path = [sys.executable, "-c", full], tmp_path / "writer.lock"
    ended = subprocess.run(
        [*words, path], capture_output=True, stdin=subprocess.DEVNULL, check=True
    )
    assert (ended.stdout, path.read_bytes()) == (b"held\n", b"")


def test_users_can_pass_its_directory(tmp_path: Path) -> None:
    """The lock makes the run directory where it is missing, also under UMask=0077."""
    path = tmp_path / "run" / "writer.lock"
    before = os.umask(0o077)
    try:
        with writer_lock(path):
            assert path.parent.stat().st_mode & 0o777 == 0o755
            assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_what_was_deleted_is_taken_again(tmp_path: Path) -> None:
    """It is reported once, also of a directory that other code has to make."""
    file, state = tmp_path / "run" / "writer.lock", tmp_path / "state"
    state.mkdir()
    with writer_lock(file, state) as lock:
        assert lock.take() == ()
        file.unlink()
        state.rmdir()
        assert set(lock.take()) == {file, state}
        assert lock.take() == ()
        state.mkdir()
        assert lock.take() == ()
        with pytest.raises(NodeagentError, match=f"it holds {state}"):
            writer_lock(tmp_path / "other", state).__enter__()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_cannot_lock_the_state_directory(tmp_path: Path) -> None:
    """It could keep every writer out for ever; one that the kubelet makes has mode 0755. MPS users
    of a simulated node still pass it.
    """
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o755)
    with writer_lock(tmp_path / "writer.lock", state):
        pass
    ended = subprocess.run(
        [sys.executable, "-c", OPEN_AS_TENANT, state], capture_output=True, check=False
    )
    assert b"PermissionError" in ended.stderr
    assert state.stat().st_mode & 0o777 == 0o751


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """The reader learns which file and what to set."""
    (tmp_path / "file").touch()
    with pytest.raises(NodeagentError, match=r"run\.dir"):
        writer_lock(tmp_path / "file" / "writer.lock").__enter__()


@pytest.mark.parametrize("put", [Path.mkdir, lambda path: path.symlink_to("elsewhere")])
def test_something_else_in_its_place(tmp_path: Path, put: Callable[[Path], None]) -> None:
    """Neither root nor another run.dir helps: it has to go."""
    put(tmp_path / "writer.lock")
    with pytest.raises(NodeagentError, match=f"{tmp_path}/writer.lock") as caught:
        writer_lock(tmp_path / "writer.lock").__enter__()
    assert "move away" in caught.value.remedy


@pytest.mark.parametrize("directory", [True, False])
def test_a_file_system_without_locks(tmp_path: Path, directory: bool) -> None:
    """As NFS may be; the message names which path, and what to set."""
    number = {"x86_64": 73, "aarch64": 32}[os.uname().machine]
    lock, extra = tmp_path / "writer.lock", [tmp_path] if directory else []
    words: list[str | Path] = [sys.executable, "-c", WITHOUT_LOCKS, str(number), lock, *extra]
    ended = subprocess.run(words, capture_output=True, check=False, text=True)
    path, setting = (tmp_path, "state.dir") if directory else (lock, "run.dir")
    assert ended.stdout.startswith(f"the lock on {path} cannot be taken: No locks available")
    assert f"set {setting} to a folder on a local one" in ended.stdout
