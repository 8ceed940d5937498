"""Reports when what a path leads to may have changed, by inotify.

Files are replaced, renamed over, truncated and rewritten, deleted and made again, and mounted
ConfigMaps are swapped by a symbolic link in the middle of the path. So not the file is watched
but every directory entry that decides what the path leads to, found anew after each change.
"""

import asyncio
import stat
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import ExitStack, suppress
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
    unwatched = min(at_least_every or _WITHOUT_INOTIFY, _WITHOUT_INOTIFY)
    inotify: Inotify | None = None
    with ExitStack() as stack:
        while True:
            names: dict[int, set[str]] | None = None
            with suppress(OSError):
                # One for all changes: to close it would wait for the kernel, for 10 ms and more.
                inotify = inotify or stack.enter_context(Inotify())
                names = _watched(inotify, path)
            yield
            if inotify is None or names is None:
                await asyncio.sleep(unwatched)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(at_least_every):
                    await _change(inotify, names)
                async with asyncio.timeout(_MAX_DELAY):
                    while True:
                        async with asyncio.timeout(quiet):  # of which the end is the end of all
                            await _change(inotify, names)


def _watched(inotify: Inotify, path: Path) -> dict[int, set[str]]:
    """Watch what decides about the path now: names in directories, by watch. Raises OSError if some
    directory cannot be watched.
    """
    names: dict[int, set[str]] = {}
    entries: list[tuple[Path, str]] = []
    # A directory may vanish or appear between the walk and the watch: go on until both agree.
    while entries != (entries := deciding_entries(path.absolute())):
        for directory, name in entries:
            with suppress(FileNotFoundError):  # the next walk does not find it either
                watch = inotify.add_watch(directory, _MASK)
                names.setdefault(watch.wd, set()).add(name)
    return names


async def _change(inotify: Inotify, names: Mapping[int, Collection[str]]) -> None:
    while not _matters(await inotify.get(), names):
        pass


def _matters(event: Event, names: Mapping[int, Collection[str]]) -> bool:
    if Mask.Q_OVERFLOW in event.mask:
        return True
    decide = names.get(event.watch.wd, ()) if event.watch else ()
    if event.name is None:  # the directory itself went away or changed
        return bool(decide)
    return str(event.name) in decide and not (
        Mask.CREATE in event.mask and _is_being_written(event)
    )


def _is_being_written(event: Event) -> bool:
    """A new regular file is empty at first; closing it reports that it is complete."""
    try:
        found = event.path.lstat() if event.path else None
    except OSError:
        return False
    return found is not None and stat.S_ISREG(found.st_mode) and found.st_nlink == 1


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
