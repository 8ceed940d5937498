"""What devices were like before the agent changed them, kept where it survives a crash.

Compute mode and time slice do not show who set them. So the original is stored before the first
change and removed when it is restored; after a crash in between, the next start can restore it.
Functions that write block: call them in a thread.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from nodeagent.errors import NodeagentError
from nodeagent.files.state import StateFile, StateFormat
from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.shares import ComputeMode, TimeSlice
from nodeagent.strict_json import parse_json

FILE_NAME: Final = "earlier-modes.json"
_LARGEST = 1024 * 1024  # bytes; 16 GPUs with 7 MIG devices each take 10 KiB


@dataclass(frozen=True, slots=True)
class Earlier:
    """What one device was before; None for what was not changed."""

    mode: ComputeMode | None = None
    time_slice: TimeSlice | None = None


class OriginalSettings:
    """By UUID of GPUs and MIG devices, in a file or, with `path` None, only in memory.

    Making one reads the file, which blocks shortly. A file that cannot be used counts as empty and
    is set aside; with `read_only`, for commands that change nothing, it stays where it is. Safe for
    several threads; one process writes at a time.
    """

    def __init__(self, path: Path | None, *, read_only: bool = False) -> None:
        self.file = StateFile(
            path,
            _FORMAT,
            what="what devices were before they were changed",
            lost="compute modes and time slices that the agent changed are not restored",
            remedy="set those that are not as you want them with nvidia-smi -c and "
            "nvidia-smi compute-policy",
        )
        self._lock = threading.Lock()
        self._devices: Mapping[str, Earlier] = (
            self.file.read() if read_only else self.file.load()
        ) or {}
        # Devices that are about to be changed: that they still are as before says nothing.
        self._modes_to_come: set[str] = set()
        self._time_slices_to_come: set[str] = set()

    def earlier_mode(self, device: str) -> ComputeMode | None:
        """Its compute mode before the agent's first change; None when it was not changed."""
        return self._devices.get(device, Earlier()).mode

    def earlier_time_slice(self, gpu: str) -> TimeSlice | None:
        """As `earlier_mode`."""
        return self._devices.get(gpu, Earlier()).time_slice

    def remember_mode(self, device: str, mode: ComputeMode) -> None:
        """Call before the change. A mode that is stored already stays, for that is the original.

        Raises NodeagentError when it cannot be written; then the change must not be made.
        """
        with self._lock:
            self._modes_to_come.add(device)
            if self.earlier_mode(device) is None:
                self._store(device, mode=mode)

    def remember_time_slice(self, gpu: str, time_slice: TimeSlice) -> None:
        """As `remember_mode`."""
        with self._lock:
            self._time_slices_to_come.add(gpu)
            if self.earlier_time_slice(gpu) is None:
                self._store(gpu, time_slice=time_slice)

    def forget_mode(self, device: str) -> None:
        """Call when it is as before, or gone with the device; raises NodeagentError."""
        with self._lock:
            self._modes_to_come.discard(device)
            self._store(device, mode=None)

    def forget_time_slice(self, gpu: str) -> None:
        """As `forget_mode`."""
        with self._lock:
            self._time_slices_to_come.discard(gpu)
            self._store(gpu, time_slice=None)

    def _store(self, device: str, **values: ComputeMode | TimeSlice | None) -> None:
        known = self._devices.get(device, Earlier())
        self._save({**self._devices, device: replace(known, **values)})  # type: ignore[arg-type]  # the callers name the fields

    # --- keeping it short -----------------------------------------------------------------------

    def prune(self, present: Collection[str]) -> None:
        """Forget devices that are no more: one that is made anew has a mode of its own.

        Call only when every GPU answers, for what does not answer is not gone. Raises nothing: what
        cannot be written now is forgotten the next time.
        """
        with self._lock, suppress(NodeagentError):
            self._save({uuid: e for uuid, e in self._devices.items() if uuid in present})

    def settle(self, gpus: Iterable[Gpu]) -> None:
        """Forget what is as it was and is not in use for MPS: it was restored by hand, or a crash
        came before the change or after the restoration. Raises nothing.

        From then on the device is left as it is. What was stored for a change that was not
        observed yet stays.
        """
        with self._lock, suppress(NodeagentError):
            devices = dict(self._devices)
            for gpu in gpus:
                if gpu.access is Access.OK:
                    self._settle(devices, gpu)
            self._save(devices)

    def _settle(self, devices: dict[str, Earlier], gpu: Gpu) -> None:
        found = [(gpu.uuid, gpu.compute_mode, gpu.mps)]
        found += [(d.uuid, d.compute_mode, d.mps) for i in gpu.instances for d in i.compute]
        for uuid, mode, mps in found:
            earlier = devices.get(uuid)
            if earlier is None or mode is None:
                continue
            if mode is not earlier.mode:
                self._modes_to_come.discard(uuid)
            elif mps is None and uuid not in self._modes_to_come:
                devices[uuid] = replace(earlier, mode=None)
        earlier = devices.get(gpu.uuid)
        if earlier is None or gpu.time_slice is None:
            return
        if gpu.time_slice is not earlier.time_slice:
            self._time_slices_to_come.discard(gpu.uuid)
        elif gpu.uuid not in self._time_slices_to_come:
            devices[gpu.uuid] = replace(earlier, time_slice=None)

    # --- the file -------------------------------------------------------------------------------

    def _save(self, devices: Mapping[str, Earlier]) -> None:
        kept = {uuid: earlier for uuid, earlier in devices.items() if earlier != Earlier()}
        if kept != self._devices:
            self.file.save(kept)
            self._devices = kept


def _encoded(devices: Mapping[str, Earlier]) -> bytes:
    content: dict[str, dict[str, str]] = {}
    for uuid, earlier in devices.items():
        fields = content[uuid] = {}
        if earlier.mode is not None:
            fields["computeMode"] = earlier.mode.value
        if earlier.time_slice is not None:
            fields["timeSlice"] = earlier.time_slice.value
    return f"{json.dumps(content, indent=1)}\n".encode()


def _decoded(content: bytes, _: int) -> Mapping[str, Earlier]:
    """The first release wrote the same content without a checksum."""
    devices = {}
    for uuid, fields in parse_json(content).items():
        if unknown := fields.keys() - {"computeMode", "timeSlice"}:
            raise ValueError(f"unknown key {min(unknown)!r}")
        mode, time_slice = fields.get("computeMode"), fields.get("timeSlice")
        devices[uuid] = Earlier(
            None if mode is None else ComputeMode(mode),
            None if time_slice is None else TimeSlice(time_slice),
        )
    return devices


_FORMAT: Final[StateFormat[Mapping[str, Earlier]]] = StateFormat(
    "earlier-modes", 2, _LARGEST, _encoded, _decoded
)
