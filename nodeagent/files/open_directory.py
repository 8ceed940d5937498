"""Open directories of this process, in which files are published and other directories are made.

Nothing here follows a symlink: each directory is opened in the one above it, and each name is
looked at, written and removed in the open directory. What another user put there is named and
left as it is.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

from nodeagent.catalogue import section
from nodeagent.errors import NodeagentError
from nodeagent.files.unasked import open_below
from nodeagent.structs import Struct

FILE_MODE = 0o644
DIRECTORY_MODE = 0o755
LARGEST = 16 * 1024**2  # bytes; a file beyond that is none of ours, and is not read
DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_UNFINISHED = 0o700  # the mode of a directory that is being made
_NEW = ".new"  # while it is written; readers of a directory go by the ending
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class PathRefused(NodeagentError):
    """A file or directory cannot be used, or not safely; what is there was left."""


class OpenDirectory(Struct, frozen=True):
    """An open directory. `path` is for messages, and so is `use`, by which the catalogue has what
    to do where it, or something in it, is refused.
    """

    path: Path
    descriptor: int
    use: str

    @classmethod
    @contextmanager
    def opened(cls, path: Path, *, make: bool, use: str, group: bool = False) -> Iterator[Self]:
        """Opens the directory of a setting; `make` creates it where it is missing. Its owner has to
        be this process' user or root. No other user may write to it, nor another group unless
        `group` allows that.

        Symlinks above it are the administrator's own (/var/run is one). Raises PathRefused.
        """
        if not path.is_absolute() or ".." in path.parts or "\0" in str(path):
            raise PathRefused.of("notAbsolute", path=repr(str(path)))
        with ExitStack() as stack:
            with refusing("used", path, use):
                if make and not os.path.lexists(path):
                    make_open_directory(path)
                descriptor = _open(stack, path)
            found = os.fstat(descriptor)
            if found.st_uid != 0:
                _check_owner(path, found, os.geteuid(), use)
            _check_writers(path, found, group=group)
            yield cls(path, descriptor, use)

    @contextmanager
    def child(
        self,
        name: str,
        *,
        make: bool,
        mode: int = DIRECTORY_MODE,
        owner: tuple[int, int] | None = None,
        retake: bool = False,
    ) -> Iterator[Self]:
        """Opens a directory in this one; `make` creates it where it is missing. Its owner has to be
        this process' user, or the user and group in `owner`. These become its owner when it is
        new, when whoever made it was ended before giving it to them, and, with `retake`, whenever
        its owner is this process' user. Raises PathRefused.
        """
        path, use, new = self.path / name, self.use, False
        with ExitStack() as stack:
            if make:
                with refusing("made", path, use), suppress(FileExistsError):
                    os.mkdir(name, _UNFINISHED, dir_fd=self.descriptor)
                    new = True
            with refusing("used", path, use):
                descriptor = _open(stack, Path(name), self.descriptor, foreign=owner is not None)
            uid = owner[0] if owner else os.geteuid()
            is_ours = os.fstat(descriptor).st_uid == os.geteuid() != uid
            if owner and (new or (is_ours and (retake or _is_unfinished(descriptor)))):
                self._give(name, descriptor, owner)
            found = os.fstat(descriptor)
            _check_owner(path, found, uid, use)
            if make and stat.S_IMODE(found.st_mode) != mode:
                with refusing("used", path, use):
                    os.fchmod(descriptor, mode)
            yield type(self)(path, descriptor, use)

    def _give(self, name: str, descriptor: int, owner: tuple[int, int]) -> None:
        try:
            os.fchown(descriptor, *owner)
        except OSError as error:
            with suppress(OSError):  # one that is not empty stays
                os.rmdir(name, dir_fd=self.descriptor)
            raise PathRefused.of(
                "notGiven", path=self.path / name, user=owner[0], why=error.strerror
            ) from error

    def names(self) -> tuple[str, ...]:
        with refusing("read", self.path, self.use):
            return tuple(sorted(os.listdir(self.descriptor)))  # noqa: PTH208  # of an open one

    def directories(self) -> tuple[str, ...]:
        """The names of those in it, sorted; what a symlink leads to is none."""
        with refusing("read", self.path, self.use), os.scandir(self.descriptor) as entries:
            return tuple(sorted(e.name for e in entries if e.is_dir(follow_symlinks=False)))

    def put(self, name: str, content: bytes) -> bool:
        """Make a file be this; whether it was not before. Readers see the old or the new one.

        Raises PathRefused when something is there that this process' user did not make.
        """
        if self._read(name) == content:
            return False
        with refusing("written", self.path / name, self.use):
            new, here = f".{name}{_NEW}", self.descriptor
            with suppress(FileNotFoundError):  # left by a process that was killed
                os.unlink(new, dir_fd=here)
            descriptor = os.open(new, _CREATE, FILE_MODE, dir_fd=here)
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, FILE_MODE)  # whatever the umask is
                file.write(content)
            os.rename(new, name, src_dir_fd=here, dst_dir_fd=here)
        return True

    def remove(self, name: str) -> bool:
        """Take a file away; whether there was one. Raises PathRefused as `put` does."""
        if self._checked(name) is None:
            return False
        with refusing("removed", self.path / name, self.use), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)
        return True

    def remove_child(self, name: str) -> None:
        with refusing("removed", self.path / name, self.use), suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=self.descriptor)

    def _checked(self, name: str) -> os.stat_result | None:
        """A plain file of this process' user; None when there is nothing."""
        path = self.path / name
        with refusing("looked at", path, self.use):
            try:
                found = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
            except FileNotFoundError:
                return None
        if stat.S_ISLNK(found.st_mode):
            raise _symlink(path, self.use)
        if not stat.S_ISREG(found.st_mode):
            raise PathRefused.of("notPlainFile", path=path)
        _check_owner(path, found, os.geteuid(), self.use)
        return found

    def _read(self, name: str) -> bytes | None:
        """What the file says; None when it has to be written anew anyway."""
        found = self._checked(name)
        if found is None or stat.S_IMODE(found.st_mode) != FILE_MODE or found.st_nlink != 1:
            return None
        if found.st_size > LARGEST:
            return None
        with refusing("read", self.path / name, self.use):
            descriptor = os.open(name, _READ, dir_fd=self.descriptor)
            with os.fdopen(descriptor, "rb") as file:
                return file.read(LARGEST)


def make_open_directory(path: Path) -> None:
    """Make it and what is missing above it with mode 0755, whatever the umask is.

    What is there already keeps its mode. Raises OSError. Blocks on the disk.
    """
    if path.is_dir():
        return
    for level in reversed((path, *path.parents)):
        try:
            level.mkdir()
        except OSError:  # not only FileExistsError: of one that is there on a read-only file system
            if not level.is_dir():
                raise
        else:
            level.chmod(0o755)


def _is_unfinished(descriptor: int) -> bool:
    """Whether the directory is as it was made, before its owner and mode were set."""
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    return mode == _UNFINISHED and not os.listdir(descriptor)


def _open(stack: ExitStack, path: Path, above: int | None = None, *, foreign: bool = False) -> int:
    """Closed with the stack; `foreign`: its owner may have mounted something on it."""
    if foreign and above is not None:
        descriptor = open_below(above, str(path), DIRECTORY_FLAGS)
    else:
        descriptor = os.open(path, DIRECTORY_FLAGS, dir_fd=above)
    stack.callback(os.close, descriptor)
    return descriptor


# --- refusals -------------------------------------------------------------------------------------


def _remedy(use: str, of: str) -> str:
    return str(section("directory")[use][of])


@contextmanager
def refusing(what: str, path: Path, use: str) -> Iterator[None]:
    """Turn an error of the system into PathRefused."""
    try:
        yield
    except OSError as error:
        if path.is_symlink():
            raise _symlink(path, use) from error
        remedy = _remedy(use, "system")
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            remedy = f"make room in {path.parent}; the agent retries"
        raise PathRefused(f"{path} cannot be {what}: {error.strerror}", remedy=remedy) from error


def _symlink(path: Path, use: str) -> PathRefused:
    remedy = f"see `ls -l {path}`; {_remedy(use, 'symlink')}"
    return PathRefused(f"{path} is a symlink, which could lead anywhere", remedy=remedy)


def _check_owner(path: Path, found: os.stat_result, uid: int, use: str) -> None:
    if found.st_uid != uid:
        raise PathRefused.of(
            "otherOwner", path=path, found=found.st_uid, uid=uid, mend=_remedy(use, "owner")
        )


def _check_writers(path: Path, found: os.stat_result, *, group: bool) -> None:
    """A kubelet's volumes are root's, mode 0777 or, with fsGroup, 2777: no pod can change that."""
    others = found.st_mode & stat.S_IWOTH
    own = group or found.st_gid in {0, os.getegid()}
    if others or (found.st_mode & stat.S_IWGRP and not own):
        case = "writableByOthers" if found.st_uid == os.geteuid() else "othersWritableByOthers"
        raise PathRefused.of(case, path=path, mode=f"{stat.S_IMODE(found.st_mode):o}")
