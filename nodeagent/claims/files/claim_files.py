"""The CDI file of each claim: what it has to be, from the claim's record and the node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nodeagent.claims.files.cdi import ContainerDevice, claim_document
from nodeagent.claims.files.cdi_files import file_state, publish
from nodeagent.claims.model import ClaimedDevice, ClaimRecord, FileState
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.errors import NodeagentError
from nodeagent.files.cdi import Edits
from nodeagent.gpu.capability_files import Instance
from nodeagent.plan.observed import ObservedNode

Capabilities = Callable[[], Mapping[int, Instance]]
"""What each capability file is the key to; blocks and raises OSError."""

_Numbers = Mapping[Instance, int]


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
