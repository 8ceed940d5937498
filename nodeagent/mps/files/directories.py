"""The directories of one device's daemon: made for its user, refused when another user could have
changed them, and removed.

Nothing here follows a symlink below the run directory; each level is opened in the one above it,
and what was checked is what is used. The owner of a directory may have put anything into it, links
and endless nesting included, and may go on while it is removed: so each directory is taken from its
owner before it is read, and nested ones are moved up, so that no depth costs more memory or
descriptors.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import mkdtemp

from nodeagent.files import open_directory
from nodeagent.files.unasked import open_below
from nodeagent.mps.shares import DaemonSpec
from nodeagent.plan.shares import WantedMps


def remove_tree(top: Path) -> None:
    """All below `top`, directories before files, and itself; nothing where there is nothing.

    Raises OSError for what cannot be removed.
    """
    while os.path.lexists(top):  # once more where another thread took something away meanwhile
        with suppress(FileNotFoundError):
            empty(top)
            top.rmdir()


def empty(top: Path) -> None:
    """All below `top`, which from then on is this process' user's. Raises OSError."""
    with _taken(top) as inside:
        _lift_and_remove(inside)
        for name in os.listdir(inside):  # noqa: PTH208  # of an open one
            os.unlink(name, dir_fd=inside)


def _lift_and_remove(top: int) -> None:
    """All directories in it. Those within these come up beside them, and are next."""
    free = (name for name in map("lifted-{}".format, count()) if not _is_there(name, top))
    while names := _directories(top):
        for name in names:
            with _taken(name, top) as inside:
                within = _directories(inside)
                for deeper in within:
                    os.rename(deeper, next(free), src_dir_fd=inside, dst_dir_fd=top)
                for file in os.listdir(inside):  # noqa: PTH208  # of an open one
                    os.unlink(file, dir_fd=inside)
            os.rmdir(name, dir_fd=top)


@contextmanager
def _taken(path: Path | str, above: int | None = None) -> Iterator[int]:
    """An open directory that from now on only this process' user can change."""
    if above is None:
        descriptor = os.open(path, open_directory.DIRECTORY_FLAGS)
    else:
        descriptor = open_below(above, str(path), open_directory.DIRECTORY_FLAGS)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            os.fchown(descriptor, os.geteuid(), -1)
        os.fchmod(descriptor, 0o700)
        yield descriptor
    finally:
        os.close(descriptor)


def _directories(inside: int) -> list[str]:
    with os.scandir(inside) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _is_there(name: str, inside: int) -> bool:
    try:
        os.stat(name, dir_fd=inside, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


MAX_SOCKET_PATH = 107  # bytes; sockaddr_un holds 108 with the zero at the end
LONGEST_SOCKET = "control_privileged"  # of those that the daemon makes
SHORTER = (  # where a socket's path is too long
    "set run.dir to a shorter path; without it the daemons of a simulated node are beside the file "
    "that --state names"
)
# Where a daemon without a setting would be. These are never ours: every CUDA program looks there,
# and container runtimes mount the first into every container.
DEFAULT_DIRECTORIES = ("/tmp/nvidia-mps", "/run/nvidia-mps", "/var/log/nvidia-mps")  # noqa: S108  # to refuse them

_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,79}")
_LOCK = "control_lock"  # which the daemon makes for all users to write
_ASIDE = ".aside"  # beside the devices' directories, and no device's name
_MODES = {
    "pipe": 0o755,  # clients of other users must reach it, or they would silently run without MPS
    "log": 0o750,
    "shm": 0o1777,  # stands in for /dev/shm, and is as that is
}


def is_device_name(text: str) -> bool:
    """Whether a device can have a directory of this name."""
    return _DEVICE.fullmatch(text) is not None


def pipe_directory(run_dir: Path, device: str) -> str:
    """The directory of a daemon's sockets. Raises PathRefused if none can be at its path."""
    top = _top(run_dir, device)
    socket = os.fsencode(f"{top}/pipe/{LONGEST_SOCKET}")
    if len(socket) > MAX_SOCKET_PATH:
        raise open_directory.PathRefused.of(
            "mpsSocket",
            socket=os.fsdecode(socket),
            bytes=len(socket),
            most=MAX_SOCKET_PATH,
            mend=SHORTER,
        )
    return f"{top}/pipe"


def spec_in(
    run_dir: Path, device: str, wanted: WantedMps, *, private_shm: bool = False
) -> DaemonSpec:
    """The daemon of `device` (a UUID) that makes `wanted` so. Raises as `pipe_directory`."""
    return DaemonSpec(device, wanted, pipe_directory(run_dir, device), private_shm)


def make_directories(run_dir: Path, device: str, *, uid: int, gid: int, shm: bool = False) -> str:
    """Make them for this user, or see that they are as they must be; `shm` only where it is used,
    for every user of the machine can fill it. Returns the one with its sockets.

    Raises PathRefused with what was found where. Blocks for as long as the file system does.
    """
    pipe = pipe_directory(run_dir, device)
    with ExitStack() as stack:
        opened = open_directory.OpenDirectory.opened(run_dir, make=True, use="daemons", group=True)
        above = stack.enter_context(opened)
        _check_passable(Path(os.path.realpath(run_dir)), uid, gid)
        for name in ("mps", device):
            above = stack.enter_context(above.child(name, make=True))
        for name, mode in _MODES.items():
            if name == "shm" and not shm:
                continue
            is_pipe = name == "pipe"  # sealed when its last daemon had answered
            made = above.child(name, make=True, mode=mode, owner=(uid, gid), retake=is_pipe)
            stack.enter_context(made)
    return pipe


def seal_pipe_directory(pipe: str) -> None:
    """Let only root add or remove files there, until `make_directories` gives it back to its user,
    and only that user write to its lock file. Does nothing where this process is not root. Raises
    OSError.
    """
    if os.geteuid() != 0:
        return
    descriptor = open_in(Path(pipe), "", open_directory.DIRECTORY_FLAGS)
    try:
        found = os.fstat(descriptor)
        if (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) != (0, 0, _MODES["pipe"]):
            os.fchown(descriptor, 0, 0)
            os.fchmod(descriptor, _MODES["pipe"])
        with suppress(FileNotFoundError):
            lock = os.stat(_LOCK, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISREG(lock.st_mode) and lock.st_mode & 0o022:
                os.chmod(_LOCK, stat.S_IMODE(lock.st_mode) & ~0o022, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def remake_directories(run_dir: Path, spec: DaemonSpec) -> None:
    """Make the directories of `make_directories` for the daemon's user. What another user's daemon
    had is removed before, and what this one mounted there.
    """
    owners = {spec.pipe_directory: {spec.uid, os.geteuid()}, spec.log_directory: {spec.uid}}
    top = Path(spec.pipe_directory).parent
    with suppress(FileNotFoundError):
        if _has_mounts(top) or any(owner_of(one) not in owners[one] for one in owners):
            remove_directories(run_dir, spec.device)
    account, shm = spec.account, spec.private_shm
    make_directories(run_dir, spec.device, uid=account.uid, gid=account.gid, shm=shm)


def remove_directories(run_dir: Path, device: str) -> None:
    """Take away all of the device's, as when another user is to have it. No daemon may run there.

    What has a file system of its user's mounted on it is put aside, and removed when that has gone.
    Raises PathRefused when something could not be removed; symlinks are not followed.
    """
    top, aside = Path(_top(run_dir, device)), run_dir / "mps" / _ASIDE
    try:
        for left in aside.iterdir() if aside.is_dir() else ():
            if not _has_mounts(left):
                remove_tree(left)
        if _has_mounts(top):
            aside.mkdir(0o700, exist_ok=True)
            top.rename(Path(mkdtemp(dir=aside)) / device)
        else:
            remove_tree(top)  # the record goes last, so that after a crash the rest is still known
    except OSError as error:
        raise open_directory.PathRefused.of(
            "notRemoved", path=error.filename or top, folder=top, why=error.strerror
        ) from error


def open_in(directory: Path, name: str, flags: int, mode: int = 0) -> int:
    """Open a file in a directory that another user has, or with "" the directory. Raises OSError,
    also where anything is mounted on it.
    """
    above = os.open(directory.parent, open_directory.DIRECTORY_FLAGS)
    try:
        return open_below(above, f"{directory.name}/{name}".rstrip("/"), flags, mode)
    finally:
        os.close(above)


def owner_of(directory: str) -> int:
    """The uid that owns a directory. Raises OSError, also where anything is mounted on it."""
    found = open_in(Path(directory), "", os.O_PATH | os.O_NOFOLLOW)
    try:
        return os.fstat(found).st_uid
    finally:
        os.close(found)


def _has_mounts(top: Path) -> bool:
    """Whether anything is mounted on it or below, by the kernel's list: a file system of another
    user (FUSE) may refuse every look, or never answer.
    """
    above = os.path.realpath(top.parent)
    wanted = f"{above}/{top.name}/".replace(" ", "\\040")
    mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    return any(f"{line.split(' ', 5)[4]}/".startswith(wanted) for line in mounts)


def _top(run_dir: Path, device: str) -> str:
    text = str(run_dir)
    if not run_dir.is_absolute() or ".." in run_dir.parts:
        raise open_directory.PathRefused.of("runDirRelative", text=text)
    if not text.isprintable() or ":" in text:
        raise open_directory.PathRefused.of("runDirCharacters", text=text)
    if not is_device_name(device):
        raise open_directory.PathRefused.of("deviceName", device=device)
    top = f"{text}/mps/{device}"
    if any(f"{text}/".startswith(f"{default}/") for default in DEFAULT_DIRECTORIES):
        raise open_directory.PathRefused.of("defaultDirectory", folder=top)
    return top


def may_pass(found: os.stat_result, uid: int, gid: int) -> bool:
    """Whether a user may pass a directory. Groups beside the first are not looked at: a server does
    not get them.
    """
    bit = 0o100 if found.st_uid == uid else 0o010 if found.st_gid == gid else 0o001
    return uid == 0 or bool(found.st_mode & bit)


def _check_passable(path: Path, uid: int, gid: int) -> None:
    """Whether the user may pass every directory from the root down to `path`.

    Where it may not, servers end with status 0 again and again and say nothing.
    """
    for level in (*reversed(path.parents), path):
        with open_directory.refusing("looked at", level, "daemons"):
            found = level.stat()
        if not may_pass(found, uid, gid):
            raise open_directory.PathRefused.of(
                "notPassed", user=uid, level=level, mode=f"{stat.S_IMODE(found.st_mode):o}"
            )
