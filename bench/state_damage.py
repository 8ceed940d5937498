"""State files with every cut and every flipped bit: what is refused, and what is used after all.

The first release's files have no checksum, so a changed digit or letter of
theirs is not noticed; they are read once, at the upgrade.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.tables import show
from nodeagent import __version__
from nodeagent.claims.files import records as claim_records
from nodeagent.claims.model import ClaimRecord
from nodeagent.claims.offering.planned_places import planned_places_file
from nodeagent.files.state import StateFile
from nodeagent.gpu.original_settings import OriginalSettings
from nodeagent.health.state_file import health_file
from nodeagent.mps.files import records as mps_records
from nodeagent.reconcile.plan_update import last_good_plan

_FIRST_RELEASE = Path("tests/data/state")
_OF_ITS_OWN: dict[str, Callable[[Path], StateFile[Any]]] = {
    "health.json": health_file,
    "last-good-plan": last_good_plan,
    "earlier-modes.json": lambda path: OriginalSettings(path, read_only=True).file,
    "planned-places.json": planned_places_file,
}
# What the first release had, in the form of this one and in its own; and what came later.
_RELEASES = {
    "this": _FIRST_RELEASE / __version__,
    "first": _FIRST_RELEASE,
}
_LATER = {"planned-places.json", "claim.json"}


def run() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        rows = [
            [file, release, *_row(Path(name, release), file, folder / file)]
            for release, folder in _RELEASES.items()
            for file in (*_OF_ITS_OWN, "record.json", "claim.json")
            if release == "this" or file not in _LATER
        ]
    header = ["file", "release", "bytes", "cuts", "flips", "refused", "used, equal", "used, other"]
    show("Damaged state files", header, rows)


def _row(folder: Path, file: str, source: Path) -> list[object]:
    content = source.read_bytes()
    path, read = _place(folder, file, content.decode())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    good = read()
    if good is None:
        raise RuntimeError(f"{source} is refused as it is")
    refused = equal = other = 0
    for damaged in _damaged(content):
        path.write_bytes(damaged)
        found = read()
        refused += found is None
        equal += found is not None and found == good
        other += found is not None and found != good
    path.unlink()
    length = len(content)
    return [length, length, 8 * length, refused, equal, other]


def _place(folder: Path, file: str, text: str) -> tuple[Path, Callable[[], object]]:
    """Where a file with this text has to be, and how it is read; None: it was refused."""
    if file == "record.json":
        path = folder / mps_records.FOLDER / _value(text, "device") / file
        return path, lambda: _only(mps_records.read_records(folder), mps_records.Record)
    if file == "claim.json":
        path = folder / f"{_value(text, 'uid')}.json"
        return path, lambda: _only(claim_records.read_records(folder), ClaimRecord)
    path = folder / file
    return path, lambda: _OF_ITS_OWN[file](path).read()


def _value(text: str, key: str) -> str:
    return str(re.findall(rf'"{key}": ?"([^"]+)"', text)[0])


def _only(found: Iterable[object], kind: type) -> object:
    [record] = found
    return record if isinstance(record, kind) else None


def _damaged(content: bytes) -> Iterator[bytes]:
    for length in range(len(content)):
        yield content[:length]
    for at in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[at] ^= 1 << bit
            yield bytes(flipped)
