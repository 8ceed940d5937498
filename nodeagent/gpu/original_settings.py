"""What devices were like before the agent changed them, kept where it survives a crash.

Compute mode and time slice do not show who set them. So the original is stored before the first
change and removed when it is restored; after a crash in between, the next start can restore it.
Functions that write block: call them in a thread.
"""

import json
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.json import decode

from nodeagent.errors import NodeagentError
from nodeagent.files.state import StateFile, StateFormat
from nodeagent.plan.observed import Gpu
from nodeagent.plan.shares import ComputeMode, TimeSlice
from nodeagent.structs import replace

FILE_NAME: Final = "earlier-modes.json"
_MAX_BYTES = 1024 * 1024  # bytes; 16 GPUs with 7 MIG devices each take 10 KiB

Value = ComputeMode | TimeSlice
Kind = type[ComputeMode] | type[TimeSlice]
Values = Mapping[tuple[str, Kind], Value]
_NAMES: Final[dict[str, Kind]] = {"computeMode": ComputeMode, "timeSlice": TimeSlice}


class OriginalSettings:
    """Settings by UUID of GPUs and MIG devices, in a file or, with `path` None, in memory alone.

    Making one reads the file, which blocks shortly. A file that cannot be used counts as empty and
    is set aside; with `read_only`, for commands that change nothing, it stays where it is. Safe for
    several threads; one process writes at a time.
    """

    def __init__(self, path: Path | None, *, read_only: bool = False) -> None:
        self.file = StateFile(path, _FORMAT)
        self._lock = threading.Lock()
        self._values: Values = (self.file.read() if read_only else self.file.load()) or {}
        # What is about to be changed: that it still is as before says nothing.
        self._changing: set[tuple[str, Kind]] = set()

    def mode(self, device: str) -> ComputeMode | None:
        """The compute mode before the agent's first change; None when it was not changed."""
        value = self._values.get((device, ComputeMode))
        return value if isinstance(value, ComputeMode) else None

    def time_slice(self, gpu: str) -> TimeSlice | None:
        """The time slice before the agent's first change, as `mode`."""
        value = self._values.get((gpu, TimeSlice))
        return value if isinstance(value, TimeSlice) else None

    def with_earlier(self, gpu: Gpu) -> Gpu:
        """The GPU with its earlier settings, and those of its MIG devices."""
        if not self._values:
            return gpu

        time_slice = self.time_slice(gpu.uuid)
        gpu = replace(gpu, earlier_mode=self.mode(gpu.uuid), earlier_time_slice=time_slice)
        return gpu.with_mig_devices(lambda _, c: replace(c, earlier_mode=self.mode(c.uuid)))

    def remember(self, device: str, value: Value) -> None:
        """Call before the change. What is stored already stays, for that is the original.

        Raises NodeagentError when it cannot be written; then the change must not be made.
        """
        key = (device, type(value))
        with self._lock:
            self._changing.add(key)
            self._save({key: value, **self._values})

    def forget(self, device: str, kind: Kind) -> None:
        """Call when it is as before, or gone with the device; raises NodeagentError."""
        with self._lock:
            self._changing.discard((device, kind))
            self._drop({(device, kind)})

    # --- keeping it short -----------------------------------------------------------------------

    def prune(self, present: Collection[str]) -> None:
        """Forget devices that are no more: one that is made anew has a mode of its own.

        Call only when every GPU answers, for what does not answer is not gone. Raises nothing: what
        cannot be written now is forgotten the next time.
        """
        with self._lock, suppress(NodeagentError):
            self._drop({key for key in self._values if key[0] not in present})

    def settle(self, gpus: Iterable[Gpu]) -> None:
        """Forget what is as it was and is not in use for MPS: it was restored by hand, or a crash
        came before the change or after the restoration. Raises nothing.

        From then on the device is left as it is. What was stored for a change that was not
        observed yet stays.
        """
        with self._lock, suppress(NodeagentError):
            self._drop(
                {
                    key
                    for gpu in gpus
                    if gpu.answers
                    for key, value, shared in _settings_of(gpu)
                    if self._is_settled(key, value, shared=shared)
                }
            )

    def _is_settled(self, key: tuple[str, Kind], value: Value | None, *, shared: bool) -> bool:
        if value is None or key not in self._values:
            return False
        if value is not self._values[key]:
            self._changing.discard(key)  # the change was observed
            return False
        return not shared and key not in self._changing

    def _drop(self, keys: Collection[tuple[str, Kind]]) -> None:
        self._save({key: value for key, value in self._values.items() if key not in keys})

    def _save(self, values: Values) -> None:
        if values != self._values:
            self.file.save(values)
            self._values = values


def _settings_of(gpu: Gpu) -> Iterable[tuple[tuple[str, Kind], Value | None, bool]]:
    """List the settings as they are now, and whether MPS needs them so."""
    for device in gpu.devices():
        yield (device.uuid, ComputeMode), device.compute_mode, device.mps is not None
    yield (gpu.uuid, TimeSlice), gpu.time_slice, False


def _encoded(values: Values) -> bytes:
    content: dict[str, dict[str, str]] = {}
    for name, kind in _NAMES.items():
        for (device, found), value in values.items():
            if found is kind:
                content.setdefault(device, {})[name] = value.value
    return f"{json.dumps(content, indent=1)}\n".encode()


def _decoded(content: bytes) -> Values:
    return {
        (device, _NAMES[name]): _NAMES[name](value)
        for device, fields in decode(content, type=dict[str, dict[str, str]]).items()
        for name, value in fields.items()
    }


_FORMAT: Final[StateFormat[Values]] = StateFormat(
    "earlier-modes", 1, _MAX_BYTES, _encoded, _decoded
)
