"""Files that everybody may read and only root may change, put where they belong or refused.

Nothing here follows a symlink: each directory is opened in the one above it, and each name is
looked at, written and removed in the open directory. What another user put there is named and
left as it is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from nodeagent.errors import NodeagentError

FILE_MODE = 0o644
DIRECTORY_MODE = 0o755
LARGEST = 16 * 1024**2  # bytes; a file beyond that is none of ours, and is not read

_NEW = ".new"  # while it is written; readers of a directory go by the ending
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class FileRefused(NodeagentError):
    """A file or directory cannot be published, or not safely; what is there was left."""


class PublicDirectory:
    """An open directory of this process' user. `path` is for messages alone."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    @contextmanager
    def opened(cls, path: Path, *, make: bool) -> Iterator[Self | None]:
        """One that a setting names, made where it is missing if `make`, else None then.

        Symlinks above it are the administrator's own (/var/run is one). Raises FileRefused.
        """
        if not path.is_absolute() or ".." in path.parts or "\0" in str(path):
            raise FileRefused(
                f"{str(path)!r} is no absolute path without ..", remedy="write it from / on"
            )
        with _refusing("used", path):
            new = make and not os.path.lexists(path)
            if new:
                path.mkdir(parents=True, exist_ok=True)
            descriptor = _open(path)
        if descriptor is None:
            yield None
            return
        try:
            with _refusing("used", path):
                if new:
                    os.fchmod(descriptor, DIRECTORY_MODE)  # whatever the umask is
                _check_ours(path, os.fstat(descriptor))
            yield cls(path, descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def child(self, name: str, *, make: bool) -> Iterator[Self | None]:
        """A directory in it, made where it is missing if `make`, else None then."""
        path = self.path / name
        if make:
            with _refusing("made", path), suppress(FileExistsError):
                os.mkdir(name, DIRECTORY_MODE, dir_fd=self._descriptor)
        with _refusing("used", path):
            descriptor = _open(Path(name), self._descriptor)
        if descriptor is None:
            yield None
            return
        try:
            with _refusing("used", path):
                found = os.fstat(descriptor)
                _check_owner(path, found)
                if make and stat.S_IMODE(found.st_mode) != DIRECTORY_MODE:
                    os.fchmod(descriptor, DIRECTORY_MODE)
            yield type(self)(path, descriptor)
        finally:
            os.close(descriptor)

    def names(self) -> tuple[str, ...]:
        """Of all that is in it, sorted."""
        with _refusing("read", self.path):
            return tuple(sorted(os.listdir(self._descriptor)))  # noqa: PTH208  # of an open one

    def directories(self) -> tuple[str, ...]:
        """The names of those in it, sorted; what a symlink leads to is none."""
        with _refusing("read", self.path), os.scandir(self._descriptor) as entries:
            return tuple(sorted(e.name for e in entries if e.is_dir(follow_symlinks=False)))

    def put(self, name: str, content: bytes) -> bool:
        """Make a file be this; whether it was not before. Readers see the old or the new one.

        Raises FileRefused when something is there that this process' user did not make.
        """
        path = self.path / name
        if self._read(name) == content:
            return False
        with _refusing("written", path):
            new, here = f".{name}{_NEW}", self._descriptor
            with suppress(FileNotFoundError):  # left by a process that was killed
                os.unlink(new, dir_fd=here)
            descriptor = os.open(new, _CREATE, FILE_MODE, dir_fd=here)
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, FILE_MODE)  # whatever the umask is
                file.write(content)
            os.rename(new, name, src_dir_fd=here, dst_dir_fd=here)
        return True

    def remove(self, name: str) -> bool:
        """Take a file away; whether there was one. Raises FileRefused as `put` does."""
        if self._checked(name) is None:
            return False
        with _refusing("removed", self.path / name), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)
        return True

    def remove_child(self, name: str) -> None:
        """Take an empty directory away, if there is one."""
        with _refusing("removed", self.path / name), suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=self._descriptor)

    # --- what is there --------------------------------------------------------------------------

    def _checked(self, name: str) -> os.stat_result | None:
        """A plain file of ours; None when there is nothing."""
        path = self.path / name
        with _refusing("looked at", path):
            try:
                found = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
            except FileNotFoundError:
                return None
        if stat.S_ISLNK(found.st_mode):
            raise _symlink(path)
        if not stat.S_ISREG(found.st_mode):
            raise FileRefused(f"{path} is no plain file", remedy="see who made it, and remove it")
        _check_owner(path, found)
        return found

    def _read(self, name: str) -> bytes | None:
        """What the file says; None when it has to be written anew anyway."""
        found = self._checked(name)
        if found is None or stat.S_IMODE(found.st_mode) != FILE_MODE or found.st_nlink != 1:
            return None
        if found.st_size > LARGEST:
            return None
        with _refusing("read", self.path / name):
            descriptor = os.open(name, _READ, dir_fd=self._descriptor)
            with os.fdopen(descriptor, "rb") as file:
                return file.read(LARGEST)


def _open(path: Path, above: int | None = None) -> int | None:
    """None when there is nothing."""
    try:
        return os.open(path, _DIRECTORY, dir_fd=above)
    except FileNotFoundError:
        return None


# --- refusals -------------------------------------------------------------------------------------


def _check_ours(path: Path, found: os.stat_result) -> None:
    """Of this process' user or of root, and no other user may change what is in it."""
    if found.st_uid != 0:
        _check_owner(path, found)
    others = found.st_mode & stat.S_IWOTH
    group = found.st_mode & stat.S_IWGRP and found.st_gid not in {0, os.getegid()}
    if others or group:
        raise FileRefused(
            f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):o})",
            remedy=keep_others_out(path, found),
        )


def keep_others_out(path: Path, found: os.stat_result) -> str:
    """The remedy for a directory that others can write.

    A kubelet's volumes are root's, of mode 0777 or, with fsGroup, 2777: no pod can change that.
    """
    if found.st_uid == os.geteuid():
        return f"chmod go-w {path}"
    return f"set run.dir, or for CDI cdi.dir, to a new directory in it, such as {path}/own"


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise FileRefused(
            f"{path} belongs to user {found.st_uid}, not {os.geteuid()}",
            remedy="see who made it, and remove it",
        )


@contextmanager
def _refusing(what: str, path: Path) -> Iterator[None]:
    """Raises an error of the system as FileRefused."""
    try:
        yield
    except OSError as error:
        if path.is_symlink():
            raise _symlink(path) from error
        raise FileRefused(
            f"{path} cannot be {what}: {error.strerror}",
            remedy="run as root, or set run.dir and cdi.dir to directories that can be written",
        ) from error


def _symlink(path: Path) -> FileRefused:
    return FileRefused(
        f"{path} is a symlink, which could lead anywhere",
        remedy="see who made it, and remove it, or set the directory to where it leads",
    )
