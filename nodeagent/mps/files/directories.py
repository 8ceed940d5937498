"""The directories of one device's daemon: made for its user, refused when another user could have
changed them, and removed.

Nothing here follows a symlink below the run directory; each level is opened in the one above it,
and what was checked is what is used. The owner of a directory may have put anything into it, links
and endless nesting included, and may go on while it is removed: so each directory is taken from its
owner before it is read, and nested ones are moved up, so that no depth costs more memory or
descriptors.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.files.state import make_open_directory
from nodeagent.mps.files.published import keep_others_out

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(top: Path) -> None:
    """All below `top`, directories before files, and itself; nothing where there is nothing.

    Raises OSError for what cannot be removed.
    """
    with suppress(FileNotFoundError):
        with _taken(top) as inside:
            _lift_and_remove(inside)
            for name in os.listdir(inside):  # noqa: PTH208  # of an open one
                os.unlink(name, dir_fd=inside)
        top.rmdir()


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
    descriptor = os.open(path, _DIRECTORY, dir_fd=above)
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


LONGEST_SOCKET_PATH = 107  # bytes; sockaddr_un holds 108 with the zero at the end
LONGEST_SOCKET_NAME = "control_privileged"  # of those that the daemon makes
# Where a daemon without a setting would be. These are never ours: every CUDA program looks there,
# and container runtimes mount the first into every container.
DEFAULT_DIRECTORIES = ("/tmp/nvidia-mps", "/run/nvidia-mps", "/var/log/nvidia-mps")  # noqa: S108  # to refuse them

_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,79}")
_PARENT_MODE = 0o755  # clients and servers of every user have to pass
_MODES = {
    "pipe": 0o755,  # clients of other users must reach it, or they would silently run without MPS
    "log": 0o750,
    "shm": 0o1777,  # stands in for /dev/shm, and is as that is
}


class DirectoryRefused(NodeagentError):
    """A directory for MPS cannot be had, or not safely; nothing was changed in what is there."""


@dataclass(frozen=True, slots=True)
class Directories:
    """Absolute paths."""

    pipe: str
    log: str
    shm: str


def directories_of(run_dir: Path, device: str) -> Directories:
    """Where they are. Raises DirectoryRefused for what cannot be a path of sockets."""
    top = _top(run_dir, device)
    socket = os.fsencode(f"{top}/pipe/{LONGEST_SOCKET_NAME}")
    if len(socket) > LONGEST_SOCKET_PATH:
        raise DirectoryRefused(
            f"{os.fsdecode(socket)} has {len(socket)} bytes, a socket's path at most "
            f"{LONGEST_SOCKET_PATH}",
            remedy="set run.dir to a shorter path",
        )
    return Directories(f"{top}/pipe", f"{top}/log", f"{top}/shm")


def make_directories(run_dir: Path, device: str, *, uid: int, gid: int) -> Directories:
    """Make them for this user, or see that they are as they must be.

    Raises DirectoryRefused with what was found where. Blocks for as long as the file system does.
    """
    found = directories_of(run_dir, device)
    with ExitStack() as stack:
        above = stack.enter_context(_opened_run_dir(run_dir))
        _check_passable(Path(os.path.realpath(run_dir)), uid, gid)
        here = run_dir
        for name in ("mps", device):
            here = here / name
            above = stack.enter_context(_made(above, here, _PARENT_MODE, os.geteuid(), None))
        for name, mode in _MODES.items():
            inside = stack.enter_context(_made(above, here / name, mode, uid, gid))
            if name == "pipe":
                _check_contents(inside, here / name, uid)
    return found


def seal_pipe_directory(pipe: str) -> None:
    """Let only root add or remove files there, until `make_directories` gives it back to its user.
    Does nothing where this process is not root. Raises OSError.
    """
    if os.geteuid() != 0:
        return
    descriptor = os.open(pipe, _DIRECTORY)
    try:
        found = os.fstat(descriptor)
        if (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) != (0, 0, _MODES["pipe"]):
            os.fchown(descriptor, 0, 0)
            os.fchmod(descriptor, _MODES["pipe"])
    finally:
        os.close(descriptor)


def had_by_another(directories: Directories, uid: int) -> bool:
    """Whether the directories exist and were made for another user."""
    for name, owners in ((directories.pipe, {uid, os.geteuid()}), (directories.log, {uid})):
        with suppress(FileNotFoundError):
            if os.lstat(name).st_uid not in owners:
                return True
    return False


def remove_directories(run_dir: Path, device: str) -> None:
    """Take away all of the device's, as when another user is to have it. No daemon may run there.

    Raises DirectoryRefused when something could not be removed; symlinks are not followed.
    """
    top = Path(_top(run_dir, device))
    try:
        remove_tree(top)  # the record goes last, so that after a crash the rest is still known
    except OSError as error:
        raise DirectoryRefused(
            f"{error.filename or top} cannot be removed: {error.strerror}",
            remedy=f"remove {top} by hand",
        ) from error


# --- names ----------------------------------------------------------------------------------------


def _top(run_dir: Path, device: str) -> str:
    text = str(run_dir)
    if not run_dir.is_absolute() or ".." in run_dir.parts:
        raise DirectoryRefused(
            f"run.dir {text!r} is no absolute path without ..",
            remedy="write it from / on, without ..",
        )
    if not text.isprintable() or ":" in text:
        raise DirectoryRefused(
            f"run.dir {text!r} has characters that would break environment files and mounts",
            remedy="use letters, digits, -, _ and .",
        )
    if not _DEVICE.fullmatch(device):
        raise DirectoryRefused(
            f"the device {device!r} makes no directory name",
            remedy="give the UUID of a GPU or MIG device",
        )
    top = f"{text}/mps/{device}"
    if any(f"{text}/".startswith(f"{default}/") for default in DEFAULT_DIRECTORIES):
        raise DirectoryRefused(
            f"{top} is within a default directory of MPS, where programs that should not have it "
            "would find it",
            remedy="set run.dir to another path",
        )
    return top


# --- each level -----------------------------------------------------------------------------------


@contextmanager
def _opened_run_dir(run_dir: Path) -> Iterator[int]:
    try:
        make_open_directory(run_dir)
        descriptor = os.open(run_dir, _DIRECTORY)
    except OSError as error:
        raise _cannot("used", run_dir, error) from error
    try:
        found = os.fstat(descriptor)
        if found.st_uid != 0:
            _check_own(found, run_dir, os.geteuid())
        if found.st_mode & stat.S_IWOTH:
            raise DirectoryRefused(
                f"{run_dir} can be written by others (mode {stat.S_IMODE(found.st_mode):o})",
                remedy=keep_others_out(run_dir, found),
            )
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _made(above: int, path: Path, mode: int, uid: int, gid: int | None) -> Iterator[int]:
    """The directory `path`, a name in the open directory `above`, open in turn."""
    new = True
    try:
        os.mkdir(path.name, 0o700, dir_fd=above)
    except FileExistsError:
        new = False
    except OSError as error:
        raise _cannot("made", path, error) from error
    try:
        descriptor = os.open(path.name, _DIRECTORY, dir_fd=above)
    except OSError as error:
        raise _cannot("used", path, error) from error
    try:
        # A pipe directory was sealed when its last daemon had answered.
        if new or (path.name == "pipe" and os.fstat(descriptor).st_uid == os.geteuid() != uid):
            _give(above, descriptor, path, uid, gid)
        found = os.fstat(descriptor)
        _check_own(found, path, uid)
        if stat.S_IMODE(found.st_mode) != mode:
            os.fchmod(descriptor, mode)
        yield descriptor
    finally:
        os.close(descriptor)


def _give(above: int, descriptor: int, path: Path, uid: int, gid: int | None) -> None:
    try:
        os.fchown(descriptor, uid, -1 if gid is None else gid)
    except OSError as error:
        with suppress(OSError):  # one that is not empty stays
            os.rmdir(path.name, dir_fd=above)
        raise DirectoryRefused(
            f"{path} cannot be given to user {uid}: {error.strerror}", remedy="run as root"
        ) from error


def _check_own(found: os.stat_result, path: Path, uid: int) -> None:
    if found.st_uid != uid:
        raise DirectoryRefused(
            f"{path} belongs to user {found.st_uid}, not {uid}",
            remedy="see who made it; remove it when no daemon runs there",
        )


def _cannot(what: str, path: Path, error: OSError) -> DirectoryRefused:
    if path.is_symlink():
        return DirectoryRefused(
            f"{path} is a symlink, which could lead anywhere",
            remedy="remove it, or set run.dir to where it leads",
        )
    return DirectoryRefused(
        f"{path} cannot be {what}: {error.strerror}",
        remedy="run as root, or set run.dir to a directory that can be written",
    )


def _check_contents(pipe: int, path: Path, uid: int) -> None:
    """What a daemon left is its user's own, and no symlink."""
    with os.scandir(pipe) as entries:
        for entry in entries:
            if entry.is_symlink():
                raise DirectoryRefused(
                    f"{path / entry.name} is a symlink, which no daemon makes",
                    remedy="see who made it, and remove it",
                )
            owner = entry.stat(follow_symlinks=False).st_uid
            if owner not in {uid, 0, os.geteuid()}:
                raise DirectoryRefused(
                    f"{path / entry.name} belongs to user {owner}, not {uid}",
                    remedy="see who made it, and remove it",
                )


def _check_passable(path: Path, uid: int, gid: int) -> None:
    """Whether the user may pass every directory from the root down to `path`.

    Where it may not, servers end with status 0 again and again and say nothing. Groups beside the
    first are not looked at: a server does not get them.
    """
    if uid == 0:
        return
    for level in (*reversed(path.parents), path):
        try:
            found = level.stat()
        except OSError as error:
            raise _cannot("looked at", level, error) from error
        bit = 0o100 if found.st_uid == uid else 0o010 if found.st_gid == gid else 0o001
        if not found.st_mode & bit:
            raise DirectoryRefused(
                f"user {uid} may not pass {level} (mode {stat.S_IMODE(found.st_mode):o})",
                remedy=f"chmod o+x {level}, or set run.dir to another path",
            )
