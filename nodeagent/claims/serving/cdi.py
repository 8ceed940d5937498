"""The CDI file of each claim in `cdi.dir`: what its containers get of the devices, from the claim's
record and the node.

It has version 0.5.0, which every runtime with CDI reads, and 0.7.0 only where the toolkit's own
edits need that. What every GPU container needs besides (libraries, hooks) is taken over from the
CDI document that NVIDIA's toolkit generates. Each file is written whole and read back. One that
differs from what it should be, or is missing, is written anew; one that no record stands for is
deleted.
"""

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from nodeagent.claims.model import UID, ClaimedDevice, ClaimRecord, FileState, Result
from nodeagent.claims.records import UnreadableRecord
from nodeagent.claims.serving.daemons import ClaimDaemons, MpsEdits
from nodeagent.errors import NodeagentError
from nodeagent.files.cdi import CdiDevice, DeviceNode, Edits, cdi_specification
from nodeagent.files.open_directory import OpenDirectory, PathRefused
from nodeagent.files.state import read_regular_file
from nodeagent.gpu.capability_files import Instance
from nodeagent.mps.files.client_files import slot_device
from nodeagent.mps.shares import SLOT_VARIABLE
from nodeagent.plan.observed import ObservedNode
from nodeagent.structs import Struct, replace

T = TypeVar("T")

KIND: Final = "nodeagent.io/claim"
MAX_BYTES: Final = 1 << 20  # bytes of a document; the toolkit's edits are some 20 KiB
_VERSION, _WITH_GROUPS = "0.5.0", "0.7.0"
_CONTROL: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_NO_OTHER_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES=void"  # the runtime's own injection stays off
CLAIM_FILE: Final = re.compile(rf"nodeagent\.io-claim_({UID.pattern})\.json")
UNFINISHED: Final = re.compile(rf"\.{CLAIM_FILE.pattern}\.new")

Capabilities = Callable[[], Mapping[int, Instance]]
"""What each capability file is the key to; blocks and raises OSError."""

_Numbers = Mapping[Instance, int]


# --- names ----------------------------------------------------------------------------------------


def file_name(uid: str) -> str:
    """Of the claim's document."""
    return f"nodeagent.io-claim_{uid}.json"


def device_id(uid: str, result: Result) -> str:
    """What the kubelet hands to the runtime: `nodeagent.io/claim=...`.

    No two claims and no two GPUs have one in common, and none is used again. Once a claim's record
    has it, it stays.
    """
    pool = hashlib.sha256(result.pool.encode()).hexdigest()[:8]
    share = f"-{result.share_id}" if result.share_id else ""
    return f"{KIND}={uid}-{pool}-{result.device}{share}"


def claim_of(name: str) -> str | None:
    """The uid of the claim whose file this is, whole or unfinished; None for files of others."""
    match = CLAIM_FILE.fullmatch(name) or UNFINISHED.fullmatch(name)
    return match[1] if match else None


# --- the document ---------------------------------------------------------------------------------


class ContainerDevice(Struct, frozen=True):
    """A claim's device and its files: `minors` of /dev/nvidia<minor>, `capabilities` of
    /dev/nvidia-caps/nvidia-cap<n> for a MIG device's GPU instance and compute instance.
    """

    claimed: ClaimedDevice
    minors: tuple[int, ...]
    capabilities: tuple[int, ...] = ()
    mps: MpsEdits | None = None


def claim_document(devices: Sequence[ContainerDevice], common: Edits) -> bytes:
    """The text of a claim's file; `common` is what the toolkit gives every container.

    Raises NodeagentError and ValueError as `slot_device` does. The same devices make the same text.
    """
    control = Edits(
        env=(_NO_OTHER_DEVICES,), device_nodes=tuple(DeviceNode(path) for path in _CONTROL)
    )
    edits = merged(control, common)
    version = _WITH_GROUPS if edits.additional_gids else _VERSION
    named = [
        CdiDevice(name=one.claimed.cdi_id.partition("=")[2], container_edits=_edits(one))
        for one in devices
    ]
    return cdi_specification(version, KIND, named, edits)


def merged(first: Edits, second: Edits) -> Edits:
    """Both; a variable, device file or mount point that both have is as in the first.

    A device file that the second describes more closely, is as there.
    """
    described = {node.path: node for node in second.device_nodes}
    nodes = [described.get(node.path, node) for node in first.device_nodes]
    return Edits(
        env=_first_of((*first.env, *second.env), lambda text: text.partition("=")[0]),
        device_nodes=_first_of((*nodes, *second.device_nodes), lambda node: node.path),
        hooks=tuple(dict.fromkeys((*first.hooks, *second.hooks))),
        mounts=_first_of((*first.mounts, *second.mounts), lambda mount: mount.container_path),
        additional_gids=tuple(dict.fromkeys((*first.additional_gids, *second.additional_gids))),
    )


def _first_of(items: Iterable[T], key: Callable[[T], str]) -> tuple[T, ...]:
    """The first with each key."""
    found: dict[str, T] = {}
    for item in items:
        found.setdefault(key(item), item)
    return tuple(found.values())


def _edits(one: ContainerDevice) -> Edits:
    paths = [f"/dev/nvidia{minor}" for minor in one.minors]
    paths += [f"/dev/nvidia-caps/nvidia-cap{number}" for number in one.capabilities]
    nodes = Edits(device_nodes=tuple(map(DeviceNode, paths)))
    return nodes if one.mps is None else merged(nodes, _mps_edits(one.mps))


def _mps_edits(mps: MpsEdits) -> Edits:
    """As for a slot of a plan's. Where all containers of the claim take the slots of one share,
    none of them is named one.
    """
    edits = slot_device(mps.daemon, mps.slot).container_edits
    if mps.slot.share.count in (None, 1):
        return edits
    env = tuple(text for text in edits.env if not text.startswith(f"{SLOT_VARIABLE}="))
    return replace(edits, env=env)


# --- the files ------------------------------------------------------------------------------------


class ClaimFiles(Struct, frozen=True):
    """`toolkit` is what each container needs. Every method blocks on the disk."""

    directory: Path
    capabilities: Capabilities
    toolkit: Callable[[], Edits]
    daemons: ClaimDaemons

    def publish(self, record: ClaimRecord, observed: ObservedNode) -> None:
        """Make the claim's file be what it has to be, and read it back. Raises NodeagentError; what
        was there is still there then.
        """
        name, content = file_name(record.uid), self._document(record, observed, self._numbers)
        with OpenDirectory.opened(self.directory, make=True, use="claimFiles") as directory:
            if directory.put(name, content) and directory.put(name, content):
                raise PathRefused.of("otherContent", path=directory.path, name=name)

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
            states[record.uid] = self._state(record.uid, document)
        return states

    def withdraw(self, names: Collection[str]) -> None:
        """Delete these files, as far as they are there. Raises PathRefused."""
        if not names or not os.path.lexists(self.directory):
            return
        with OpenDirectory.opened(self.directory, make=False, use="claimFiles") as directory:
            for name in names:
                directory.remove(name)

    def names(self) -> tuple[str, ...]:
        """Of all files in the directory, none where it is not there. Raises PathRefused."""
        if not os.path.lexists(self.directory):
            return ()
        with OpenDirectory.opened(self.directory, make=False, use="claimFiles") as directory:
            return directory.names()

    def _state(self, uid: str, content: bytes) -> FileState:
        """One that cannot be read differs."""
        try:
            found = read_regular_file(self.directory / file_name(uid), MAX_BYTES + 1)
        except FileNotFoundError:
            return FileState.MISSING
        except OSError:
            return FileState.DIFFERS
        return FileState.SAME if found == content else FileState.DIFFERS

    def _document(
        self, record: ClaimRecord, observed: ObservedNode, numbers: Callable[[], _Numbers]
    ) -> bytes:
        def minor(uuid: str) -> int:
            gpu = observed.gpu(uuid)
            if gpu is None or gpu.minor is None:
                raise NodeagentError.of("noDeviceFile", claim=record, uuid=uuid)
            return gpu.minor

        devices = []
        for device in record.devices:
            own = minor(device.gpu)
            keys = _keys(device, own, numbers)
            mps = self.daemons.client(device.device_uuid, device.mps) if device.mps else None
            # What clients of one kind find in their environment has to be there.
            alike = [one.gpu for one in record.devices if one.mps == device.mps]
            minors = tuple(map(minor, alike)) if len(device.daemon) > 1 else (own,)
            devices.append(ContainerDevice(device, minors, keys, mps))
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
        raise NodeagentError.of("noInstance", device=device.result.device)
    try:
        known = numbers()
        return tuple(known[minor, device.instance, part] for part in (None, device.compute))
    except (OSError, KeyError) as error:
        raise NodeagentError.of("noCapabilities", device=device.result.device, why=error) from error


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
