"""The archive: made where nothing was, readable for its owner alone, with a list of its files."""

import io
import os
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from nodeagent import __version__
from nodeagent.errors import NodeagentError

MAX_FILE: int = 4 << 20  # bytes of one file; the rest is cut off
_MAX_TOTAL = 64 << 20  # bytes before compression
_FOLDER = "nodeagent-bundle"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NEVER = (
    "Never in a bundle: tokens, passwords, private keys, kubeconfigs, the web-config file, "
    "environments of pods and processes, comments of plans, settings that are not shown above."
)


class BundleFile(NamedTuple):
    """One file: `about` says what it is, `missing` why it is not there, "" where it is."""

    name: str
    about: str
    content: bytes = b""
    missing: str = ""


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A new file of mode 0600, taken away when the block fails; raises NodeagentError."""
    try:
        descriptor = os.open(path, _FLAGS, 0o600)
    except FileExistsError as error:
        raise NodeagentError.of("archiveExists", path=path) from error
    except OSError as error:
        raise NodeagentError(f"{path} cannot be made: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)  # whatever the umask is
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def bounded(parts: Iterable[BundleFile]) -> Iterator[BundleFile]:
    """The parts, with what is too large cut off or left out."""
    room = _MAX_TOTAL
    for part in parts:
        found = part
        if len(part.content) > MAX_FILE:
            about = f"{part.about}; cut off after {MAX_FILE} bytes"
            found = part._replace(about=about, content=part.content[:MAX_FILE])
        if len(found.content) > room:
            found = BundleFile(part.name, part.about, missing="the bundle is full")
        room -= len(found.content)
        yield found


def write(file: IO[bytes], parts: Sequence[BundleFile]) -> None:
    """Write the archive: what there is, behind a MANIFEST of it and of what there is not."""
    now = int(time.time())
    manifest = BundleFile("MANIFEST", "this list", _manifest(parts, now).encode())
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for part in (manifest, *(part for part in parts if not part.missing)):
            entry = tarfile.TarInfo(f"{_FOLDER}/{part.name}")
            entry.size, entry.mtime, entry.mode = len(part.content), now, 0o600
            archive.addfile(entry, io.BytesIO(part.content))


def _manifest(parts: Sequence[BundleFile], now: int) -> str:
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    rows = [f"Made by nodeagent {__version__} at {made}.", "", "Contents:"]
    rows += [f"  {p.name}  {len(p.content)} bytes: {p.about}" for p in parts if not p.missing]
    rows += ["", "Not available, and why:"]
    rows += [f"  {p.name} ({p.about}): {p.missing}" for p in parts if p.missing]
    return "\n".join([*rows, "", _NEVER, ""])
