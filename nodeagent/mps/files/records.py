"""What the next agent has to know of a daemon: what it should be, and which process it is.

One state file for each device, in a directory that is the agent's own. It is written before the
process is started and again when it runs, so that a crash in between leaves a record without a
process, never a process without a record.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from msgspec import Meta, json

from nodeagent.files.state import StateFormat, StateUnusable, read_state, write_state
from nodeagent.mps.processes import MpsProcess
from nodeagent.plan.shares import WantedMps
from nodeagent.structs import Struct, read_in_threads

FOLDER = "mps"  # below run.dir, with a directory for each device
_NAME = "record.json"


class RecordUnusable(Struct, frozen=True):
    """The record of a device cannot be used: newer, damaged, or not the agent's own; `path` None:
    the device has a directory, and no record in it, as when an agent was killed in between.
    """

    device: str
    path: Path | None
    message: str


@read_in_threads
class Record(Struct, frozen=True):
    """One daemon, and the content of its file. `process` None: it was to be started, and perhaps
    was. `runs`: what the process was started as, which may not be what is wanted now. `drained`: a
    person wanted it down. `was_ready`: it was Ready as it is wanted, in this process or one before.
    `unrecorded`: what is `wanted` is only what was found, since the record then could not be used.
    `left`: its servers, or what is left of an earlier one; while these exit they are not found by
    their names.
    """

    device: str
    wanted: WantedMps
    runs: WantedMps | None = None
    process: MpsProcess | None = None
    drained: bool = False
    was_ready: bool = False
    restarts: Annotated[int, Meta(ge=0)] = 0
    unrecorded: bool = False
    left: tuple[MpsProcess, ...] = ()


def write_record(run_dir: Path, record: Record) -> None:
    """Put it in place of any earlier one; the device's directory exists. Raises OSError."""
    write_state(run_dir / FOLDER / record.device / _NAME, _FORMAT, record)


def read_records(run_dir: Path) -> Iterator[Record | RecordUnusable]:
    """All there are, by device; an error in place of one that cannot be used, or that is not there
    although the device has a directory. Blocks.
    """
    try:
        folders = sorted((run_dir / FOLDER).iterdir())
    except OSError:
        return
    for folder in folders:
        path = folder / _NAME
        if not folder.is_dir():
            continue
        try:
            record = read_state(path, _FORMAT)
        except StateUnusable as error:
            yield RecordUnusable(folder.name, path, error.message)
            continue
        if record is not None and record.device != folder.name:
            message = f"{path} cannot be used: it is the record of {record.device[:80]!r}"
            yield RecordUnusable(folder.name, path, message)
        elif record is not None:
            yield record
        elif folder.name.startswith(("GPU-", "MIG-")) and not folder.is_symlink():
            yield RecordUnusable(folder.name, None, f"{folder} has no record")


_FORMAT = StateFormat(
    "mps-record", 1, 1 << 20, lambda r: json.encode(r) + b"\n", json.Decoder(Record).decode
)
