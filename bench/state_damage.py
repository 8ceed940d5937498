"""State files with every cut and every flipped bit: what is refused, and what is used after all.

The first release's files have no checksum, so a changed digit or letter of
theirs is not noticed; they are read once, at the upgrade.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.tables import show
from nodeagent.files.state import StateFile
from nodeagent.gpu.original_settings import OriginalSettings
from nodeagent.health.state_file import health_file
from nodeagent.mps.files.records import FOLDER, Record, read_records, write_record
from nodeagent.reconcile.last_good_plan import last_good_plan

_FIRST_RELEASE = Path("tests/data/state")
_RECORD = "record.json"
_FILES: dict[str, Callable[[Path], StateFile[Any]]] = {
    "health.json": health_file,
    "last-good-plan": last_good_plan,
    "earlier-modes.json": lambda path: OriginalSettings(path, read_only=True).file,
}


def run() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        rows = [
            [file, release, *_row(Path(name), file, release)]
            for release in ("this", "first")
            for file in (*_FILES, _RECORD)
        ]
    header = ["file", "release", "bytes", "cuts", "flips", "refused", "used, equal", "used, other"]
    show("Damaged state files", header, rows)


def _row(folder: Path, file: str, release: str) -> list[object]:
    path, read, write = _place(folder, file)
    path.write_bytes((_FIRST_RELEASE / file).read_bytes())
    good = read()
    if release == "this":
        write(good)
    content = path.read_bytes()
    refused = equal = other = 0
    for damaged in _damaged(content):
        path.write_bytes(damaged)
        found = read()
        refused += found is None
        equal += found is not None and found == good
        other += found is not None and found != good
    length = len(content)
    return [length, length, 8 * length, refused, equal, other]


def _place(folder: Path, file: str) -> tuple[Path, Callable[[], Any], Callable[[Any], None]]:
    """Where it is, and how it is read (None: it was refused) and written."""
    if file != _RECORD:
        path = folder / file
        return path, lambda: _FILES[file](path).read(), lambda value: _FILES[file](path).save(value)
    sample = (_FIRST_RELEASE / file).read_text().partition('"device": "')[2].partition('"')[0]
    path = folder / FOLDER / sample / _RECORD
    path.parent.mkdir(parents=True, exist_ok=True)

    def read() -> Record | None:
        [found] = read_records(folder)
        return found if isinstance(found, Record) else None

    return path, read, lambda value: write_record(folder, value)


def _damaged(content: bytes) -> Iterator[bytes]:
    for length in range(len(content)):
        yield content[:length]
    for at in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[at] ^= 1 << bit
            yield bytes(flipped)
