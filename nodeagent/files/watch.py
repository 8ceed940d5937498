"""Reports when what a path leads to may have changed, by inotify.

Files are replaced, renamed over, truncated and rewritten, deleted and made again, and mounted
ConfigMaps are swapped by a symbolic link in the middle of the path. So not the file is watched
but every directory entry that decides what the path leads to, found anew after each change.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from asyncinotify import Event, Inotify, Mask

Signature = tuple[int, ...] | str

_MASK = (
    Mask.CLOSE_WRITE
    | Mask.CREATE
    | Mask.DELETE
    | Mask.MOVED_FROM
    | Mask.MOVED_TO
    | Mask.ATTRIB
    | Mask.DELETE_SELF
    | Mask.MOVE_SELF
    | Mask.ONLYDIR
)

_MAX_LINKS = 40  # the kernel's own limit while it follows a path
_MAX_DELAY = 1.0  # seconds after which a change is reported although more of them keep coming
_WITHOUT_INOTIFY = 5.0  # seconds between looks where the kernel gives no watch


def signature(path: Path) -> Signature:
    """What differs when the file was written, replaced, made or removed; text without one."""
    try:
        found = path.stat()
    except OSError as error:
        return f"errno {error.errno}"
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


async def changes(
    path: Path, *, quiet: float = 0.05, at_least_every: float | None = None
) -> AsyncIterator[None]:
    """Yield at once, and again whenever `path` may have changed and is quiet for `quiet` seconds.

    Also yields after `at_least_every` seconds without a change, for file systems whose changes
    the kernel does not see. Where no watch can be had it yields every few seconds instead.
    """
    inotify = None
    with suppress(OSError):
        inotify = Inotify()
    while inotify is None:
        yield
        await asyncio.sleep(min(at_least_every or _WITHOUT_INOTIFY, _WITHOUT_INOTIFY))
    with inotify:
        watched = _Watched(inotify, path)
        while True:
            seen_all = watched.renew()
            yield
            await watched.change(at_least_every if seen_all else _WITHOUT_INOTIFY)
            await watched.quiet(quiet)


class _Watched:
    """The watches on the directories that matter, with the names in them that do."""

    def __init__(self, inotify: Inotify, path: Path) -> None:
        self._inotify = inotify
        self._path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow the links
        self._names: dict[int, set[str]] = {}

    def renew(self) -> bool:
        """Watch what decides about the path now; False if some directory cannot be watched."""
        complete = True
        names: dict[int, set[str]] = {}
        # A directory may vanish or appear between the walk and the watch: go on until both agree.
        while True:
            entries = deciding_entries(self._path)
            for directory, name in entries:
                try:
                    watch = self._inotify.add_watch(directory, _MASK)
                except OSError:
                    complete = False
                else:
                    names.setdefault(watch.wd, set()).add(name)
            if entries == deciding_entries(self._path):
                break
        for watch in self._inotify.watches:
            if watch.wd not in names and watch.wd in self._names:
                with suppress(OSError):  # the directory is gone, and its watch with it
                    self._inotify.rm_watch(watch)
        self._names = names
        return complete

    async def change(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._matters(await self._inotify.get()):
                    pass

    async def quiet(self, seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        end = clock() + _MAX_DELAY
        until = clock() + seconds
        while clock() < min(until, end):
            try:
                async with asyncio.timeout_at(min(until, end)):
                    matters = self._matters(await self._inotify.get())
            except TimeoutError:
                return
            if matters:
                until = clock() + seconds

    def _matters(self, event: Event) -> bool:
        if Mask.Q_OVERFLOW in event.mask:
            return True
        names = self._names.get(event.watch.wd) if event.watch else None
        if names is None:
            return False
        if event.name is None:
            return True  # the directory itself went away or changed
        if str(event.name) not in names:
            return False
        return not (Mask.CREATE in event.mask and self._still_being_written(event))

    @staticmethod
    def _still_being_written(event: Event) -> bool:
        """A new regular file is empty at first; closing it reports that it is complete."""
        if event.path is None:
            return False
        try:
            found = event.path.lstat()
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def deciding_entries(path: Path) -> list[tuple[Path, str]]:
    """The directory entries that decide what an absolute path leads to.

    These are every symbolic link on the way and the last entry; the way ends at the first entry
    that is not there. The directories named are free of links and exist.
    """
    entries: list[tuple[Path, str]] = []
    here = Path("/")
    ahead = list(reversed(path.parts[1:]))
    while ahead:
        name = ahead.pop()
        if name == "..":
            here = here.parent
            continue
        try:
            is_link = stat.S_ISLNK((here / name).lstat().st_mode)
            target = (here / name).readlink() if is_link else None
        except OSError:  # not there, or just then replaced by something that is no link
            return [*entries, (here, name)]
        if target is not None:
            entries.append((here, name))
            if len(entries) > _MAX_LINKS:
                return entries
            here = Path("/") if target.is_absolute() else here
            ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        elif not ahead:
            entries.append((here, name))
        else:
            here /= name
    return entries
