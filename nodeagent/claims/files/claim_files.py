"""The CDI file of each claim in `cdi.dir`: what it has to be, from the claim's record and the node.

Each file is written whole and read back. One that differs from what it should be, or is missing,
is written anew; one that no record stands for is deleted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nodeagent.claims.files.cdi import (
    CLAIM_FILE,
    MAX_BYTES,
    UNFINISHED,
    ContainerDevice,
    claim_document,
    file_name,
)
from nodeagent.claims.files.records import UnreadableRecord
from nodeagent.claims.model import ClaimedDevice, ClaimRecord, FileState
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.errors import NodeagentError
from nodeagent.files.cdi import Edits
from nodeagent.files.open_directory import OpenDirectory, PathRefused, Remedies
from nodeagent.files.state import read_regular_file
from nodeagent.gpu.capability_files import Instance
from nodeagent.plan.observed import ObservedNode

Capabilities = Callable[[], Mapping[int, Instance]]
"""What each capability file is the key to; blocks and raises OSError."""

_Numbers = Mapping[Instance, int]

_REMOVE = "find out what created it, and remove it"
_REMEDIES = Remedies(
    owner=_REMOVE,
    symlink=f"{_REMOVE}, or set cdi.dir to where it leads",
    system="run as root, or set cdi.dir to a directory that can be written",
)


@dataclass(frozen=True, slots=True)
class ClaimFiles:
    """`toolkit` is what each container needs. Every method blocks on the disk."""

    directory: Path
    capabilities: Capabilities
    toolkit: Callable[[], Edits]
    daemons: ClaimDaemons

    def publish(self, record: ClaimRecord, observed: ObservedNode) -> None:
        """Make the claim's file be what it has to be. Raises NodeagentError."""
        publish(self.directory, record.uid, self._document(record, observed, self._numbers))

    def states(
        self, records: Iterable[ClaimRecord], observed: ObservedNode
    ) -> dict[str, FileState]:
        """By uid. A file that cannot be made now is not what it has to be."""
        states: dict[str, FileState] = {}
        numbers = cache(self._numbers)  # thousands, so once for all records
        for record in records:
            try:
                document = self._document(record, observed, numbers)
            except NodeagentError:
                document = b""
            states[record.uid] = file_state(self.directory, record.uid, document)
        return states

    def _document(
        self, record: ClaimRecord, observed: ObservedNode, numbers: Callable[[], _Numbers]
    ) -> bytes:
        devices = []
        for device in record.devices:
            gpu = observed.gpu(device.gpu)
            if gpu is None or gpu.minor is None:
                raise NodeagentError(
                    f"{record.title} cannot use {device.gpu}: its device file is not known",
                    remedy="see `ls -l /dev/nvidia*` and `nvidia-smi`",
                )
            keys = _keys(device, gpu.minor, numbers)
            mps = self.daemons.client(device.device_uuid, device.mps) if device.mps else None
            devices.append(ContainerDevice(device, gpu.minor, keys, mps))
        return claim_document(devices, self.toolkit())

    def _numbers(self) -> _Numbers:
        return {what: number for number, what in self.capabilities().items()}


def _keys(device: ClaimedDevice, minor: int, numbers: Callable[[], _Numbers]) -> tuple[int, ...]:
    """The capability files of a MIG device: of its GPU instance and its compute instance.

    Without them a container would have the file of the card alone, which outside MIG mode is
    all of it.
    """
    if device.placement is None:
        return ()
    if device.instance is None:
        raise NodeagentError(
            f"{device.result.device} does not exist, so no container can get it",
            remedy="`nodeagent status` shows what keeps it from that",
        )
    try:
        known = numbers()
        return tuple(known[minor, device.instance, part] for part in (None, device.compute))
    except (OSError, KeyError) as error:
        raise NodeagentError(
            f"the capability files of {device.result.device} are not known: {error}",
            remedy="see `cat /proc/driver/nvidia-caps/mig-minors`",
        ) from error


# --- the directory --------------------------------------------------------------------------------


def file_state(cdi_dir: Path, uid: str, content: bytes) -> FileState:
    """Of the claim with this uid; one that cannot be read differs. Blocks on the disk."""
    try:
        found = read_regular_file(cdi_dir / file_name(uid), MAX_BYTES + 1)
    except FileNotFoundError:
        return FileState.MISSING
    except OSError:
        return FileState.DIFFERS
    return FileState.SAME if found == content else FileState.DIFFERS


def publish(cdi_dir: Path, uid: str, content: bytes) -> bool:
    """Make the claim's file be this, and read it back; whether it was not so before.

    Raises PathRefused, with what was there still there. Blocks on the disk.
    """
    name = file_name(uid)
    with OpenDirectory.opened(cdi_dir, make=True, remedies=_REMEDIES) as directory:
        changed = directory.put(name, content)
        if changed and directory.put(name, content):
            raise PathRefused(
                f"{directory.path / name} does not have the content that was written",
                remedy=f"find out which other program writes there: `ls -l {directory.path}`",
            )
    return changed


def withdraw(cdi_dir: Path, files: Collection[str]) -> None:
    """Delete these files, as far as they are there. Raises PathRefused. Blocks on the disk."""
    if not files or not os.path.lexists(cdi_dir):
        return
    with OpenDirectory.opened(cdi_dir, make=False, remedies=_REMEDIES) as directory:
        for name in files:
            directory.remove(name)


def file_names(cdi_dir: Path) -> tuple[str, ...]:
    """Of all files in it, none where it is not there. Raises PathRefused. Blocks on the disk."""
    if not os.path.lexists(cdi_dir):
        return ()
    with OpenDirectory.opened(cdi_dir, make=False, remedies=_REMEDIES) as directory:
        return directory.names()


def stale(names: Iterable[str], records: Iterable[ClaimRecord | UnreadableRecord]) -> list[str]:
    """The files to delete of those in the directory, while none is being written.

    Where not even the records' names can be read, each file may be wanted. Files of others are
    passed over.
    """
    known = {one.uid for one in records}
    found: list[str] = []
    for name in sorted(names):
        match = CLAIM_FILE.fullmatch(name)
        orphaned = match and match[1] not in known and "" not in known
        if orphaned or UNFINISHED.fullmatch(name):
            found.append(name)
    return found
