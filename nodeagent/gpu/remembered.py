"""What devices were like before the agent changed them, kept where it survives a crash.

Compute mode and time slice do not say who set them. So what there was is written down before the
first change and crossed out when it is there again; in between, whoever starts next knows what to
restore. Functions that write block: call them in a thread.
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
from nodeagent.files import replace_file
from nodeagent.planning.observed import Access, Gpu
from nodeagent.planning.shares import ComputeMode, TimeSlice

FILE_NAME: Final = "earlier-modes.json"
_MOST_BYTES = 1024 * 1024  # 16 GPUs with 7 MIG devices each take 10 KiB


@dataclass(frozen=True, slots=True)
class Earlier:
    """What one device was before; None for what was not changed."""

    mode: ComputeMode | None = None
    time_slice: TimeSlice | None = None


class Remembered:
    """By UUID of GPUs and MIG devices, in a file or, with `path` None, only in memory.

    Making one reads the file, which blocks shortly. A file that cannot be used is told in
    `problem` and counts as empty; a damaged one is put aside, under its name with `.damaged`, when
    something is written in its place. Safe for several threads; one process writes at a time.
    """

    def __init__(self, path: Path | None) -> None:
        self.problem: NodeagentError | None = None
        self._path = path
        self._damaged = False
        self._lock = threading.Lock()
        self._devices: dict[str, Earlier] = {}
        # Devices that are about to be changed: that they still are as before says nothing.
        self._modes_to_come: set[str] = set()
        self._time_slices_to_come: set[str] = set()
        if path is not None:
            self._devices = self._load(path)

    # --- compute mode ---------------------------------------------------------------------------

    def earlier_mode(self, device: str) -> ComputeMode | None:
        """What it was before the agent's first change; None when it was not changed."""
        return self._devices.get(device, Earlier()).mode

    def remember_mode(self, device: str, mode: ComputeMode) -> None:
        """Call before the change. What is remembered already stays, for that is the true one.

        Raises NodeagentError when it cannot be written; then the change must not be made.
        """
        with self._lock:
            self._modes_to_come.add(device)
            known = self._devices.get(device, Earlier())
            if known.mode is None:
                self._save({**self._devices, device: replace(known, mode=mode)})

    def forget_mode(self, device: str) -> None:
        """Call when it is as before, or gone with the device; raises NodeagentError."""
        with self._lock:
            self._modes_to_come.discard(device)
            known = self._devices.get(device, Earlier())
            if known.mode is not None:
                self._save({**self._devices, device: replace(known, mode=None)})

    # --- time slice -----------------------------------------------------------------------------

    def earlier_time_slice(self, gpu: str) -> TimeSlice | None:
        """As `earlier_mode`."""
        return self._devices.get(gpu, Earlier()).time_slice

    def remember_time_slice(self, gpu: str, time_slice: TimeSlice) -> None:
        """As `remember_mode`."""
        with self._lock:
            self._time_slices_to_come.add(gpu)
            known = self._devices.get(gpu, Earlier())
            if known.time_slice is None:
                self._save({**self._devices, gpu: replace(known, time_slice=time_slice)})

    def forget_time_slice(self, gpu: str) -> None:
        """As `forget_mode`."""
        with self._lock:
            self._time_slices_to_come.discard(gpu)
            known = self._devices.get(gpu, Earlier())
            if known.time_slice is not None:
                self._save({**self._devices, gpu: replace(known, time_slice=None)})

    # --- keeping it short -----------------------------------------------------------------------

    def prune(self, present: Collection[str]) -> None:
        """Forget devices that are no more: one that is made anew has a mode of its own.

        Call only when every GPU answers, for what does not answer is not gone. Raises nothing: what
        cannot be written now is forgotten the next time.
        """
        with self._lock, suppress(NodeagentError):
            self._save({uuid: e for uuid, e in self._devices.items() if uuid in present})

    def settle(self, gpus: Iterable[Gpu]) -> None:
        """Forget what is as it was and is not in use for MPS: somebody has restored it, or a crash
        came before the change or after the way back. Raises nothing.

        From then on the device is left as whoever else has it. What was remembered for a change
        that nobody has seen yet stays.
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
        if kept == self._devices:
            return
        if self._path is not None:
            self._write(self._path, kept)
        self._devices = kept

    def _write(self, path: Path, devices: Mapping[str, Earlier]) -> None:
        if self.problem is not None and not self._damaged:
            raise self.problem  # what is in the file is not known, so it must not be overwritten
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if self._damaged:
                path.replace(path.with_name(f"{path.name}.damaged"))
                self._damaged = False
            replace_file(path, _encoded(devices))
        except OSError as error:
            raise NodeagentError(
                f"what devices were before cannot be kept in {path}: {error.strerror}",
                remedy="make room and see to the permissions there; until then the agent changes "
                "neither compute mode nor time slice",
            ) from error

    def _load(self, path: Path) -> dict[str, Earlier]:
        try:
            with path.open("rb") as file:
                content = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return {}
        except OSError as error:
            self.problem = NodeagentError(
                f"{path}, which says what devices were before, cannot be read: {error.strerror}",
                remedy="see to the permissions there, or remove it; then nothing is restored",
            )
            return {}
        try:
            return _decoded(content)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            self._damaged = True
            self.problem = NodeagentError(
                f"{path} is damaged, so it is not known what devices were before: {error}",
                remedy="set compute modes and time slices that are not as you want them with "
                "nvidia-smi -c and nvidia-smi compute-policy",
            )
            return {}


# --- as text --------------------------------------------------------------------------------------


def _encoded(devices: Mapping[str, Earlier]) -> bytes:
    content: dict[str, dict[str, str]] = {}
    for uuid, earlier in devices.items():
        fields = content[uuid] = {}
        if earlier.mode is not None:
            fields["computeMode"] = earlier.mode.value
        if earlier.time_slice is not None:
            fields["timeSlice"] = earlier.time_slice.value
    return f"{json.dumps(content, indent=1)}\n".encode()


def _decoded(content: bytes) -> dict[str, Earlier]:
    """Raises ValueError, TypeError or AttributeError for what this module did not write."""
    devices = {}
    for uuid, fields in json.loads(content).items():
        if unknown := fields.keys() - {"computeMode", "timeSlice"}:
            raise ValueError(f"unknown key {min(unknown)!r}")
        mode, time_slice = fields.get("computeMode"), fields.get("timeSlice")
        devices[uuid] = Earlier(
            None if mode is None else ComputeMode(mode),
            None if time_slice is None else TimeSlice(time_slice),
        )
    return devices
