"""What does not change about a GPU: its identity, MIG capability and (`profiles`) its profiles.

It is read once and kept until NVML is started anew or the handle turns out to be another GPU's.
All methods are called in the GPU's worker thread.
"""

from collections.abc import Iterator
from typing import Any

import pynvml

from nodeagent.errors import DriverError
from nodeagent.gpu import nvml
from nodeagent.gpu.nvml import Device
from nodeagent.gpu.nvml_errors import FUNCTION_NOT_FOUND, NOT_KNOWN, is_unsupported
from nodeagent.gpu.profiles import Profiles, if_supported
from nodeagent.gpu.recent import Recent
from nodeagent.gpu.workers import Worker
from nodeagent.plan.observed import Gpu, GpuInstanceProfile, MigMode
from nodeagent.structs import replace

_RESETLESS_SINCE = (9, 0)  # compute capability; Hopper and later change MIG mode at once
_VIRTUAL = "it is a virtual machine"

# Figures that one GPU has read for all on the same kind of board, by what identifies the kind.
Boards = dict[tuple[object, ...], dict[object, Any]]


class GpuDevice:
    """One GPU by NVML's index: its handle, the thread that makes its calls, and what need not be
    read twice.
    """

    def __init__(self, index: int, boards: Boards | None = None) -> None:
        self.index = index
        self._boards: Boards = {} if boards is None else boards
        self.worker = Worker(f"GPU {index}")
        self.uuid = ""  # kept until another GPU is found at this index
        self.no_reset = ""  # why it cannot be reset, as a reset has shown; kept
        self.gpm_samples: tuple[int, list[object]] = (-1, [])  # NVML session, and those allocated
        self.forget()

    def forget(self) -> None:
        """Forget what was read: there may be another GPU or another driver now."""
        self._handle: Device | None = None
        self._identity: Gpu | None = None
        self._common: dict[object, Any] | None = None
        self.needs_reset: bool | None = None  # by a change of the MIG mode; None: not known yet
        self.profiles = Profiles(self)
        self._has_mig = False
        self._max_mig_devices = 0
        self.recent = Recent()
        self.present_profiles: frozenset[int] = frozenset()  # ids; where to look first

    # --- the handle -----------------------------------------------------------------------------

    @property
    def handle(self) -> Device:
        if self._handle is None:
            handle = nvml.device_by_index(self.index)
            uuid = nvml.uuid(handle)
            if uuid != self.uuid:
                self.forget()
                self.uuid, self.no_reset = uuid, ""
            self._handle = handle
        return self._handle

    def give_up_handle(self) -> None:
        """Drop a handle that may be stale: after a reset, a restart of NVML, or a refused call."""
        self._handle = None
        self.recent.forget()

    # --- identity -------------------------------------------------------------------------------

    def identity(self) -> Gpu:
        """The figures that never change; what the driver lacks has the default of `Gpu`."""
        handle = self.handle
        if self._identity is None:
            pci = _read(handle, "nvmlDeviceGetPciInfo", None)
            self._identity = Gpu(
                index=self.index,
                uuid=self.uuid,
                name=nvml.name(handle),
                pci_bus_id=pci.busId if pci else "",
                pci_device_id=pci.pciDeviceId if pci else 0,
                pci_subsystem_id=pci.pciSubSystemId if pci else 0,
                minor=_read(handle, "nvmlDeviceGetMinorNumber", None),
                memory=if_supported(lambda: nvml.memory(handle).total, 0),
                compute_capability=_read(handle, "nvmlDeviceGetCudaComputeCapability", (0, 0)),
                cuda_version=_cuda_version(),
                no_reset=_VIRTUAL
                if _read(handle, "nvmlDeviceGetVirtualizationMode", 0)
                == pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH
                else "",
            )
        return self._identity

    @property
    def board(self) -> dict[object, Any]:
        """Figures that GPUs on the same kind of board share, as far as one has read them. GPUs are
        read side by side: none waits for another that is about to read a figure.
        """
        if self._common is None:
            gpu = self.identity()
            board = (gpu.name, gpu.pci_device_id, gpu.pci_subsystem_id, gpu.memory, gpu.no_reset)
            bios = _read(self.handle, "nvmlDeviceGetVbiosVersion", "")
            self._common = self._boards.setdefault((*board, bios), {})
        return self._common

    @property
    def unchanging(self) -> Gpu:
        """The GPU without its MIG mode, instances and users, as far as it was read."""
        if self._identity is None:
            return Gpu(index=self.index, uuid=self.uuid)
        offered = self.profiles
        return replace(
            self._identity,
            mode_change_needs_reset=bool(self.needs_reset),
            no_reset=self.no_reset or self._identity.no_reset,
            unlisted="" if any(p.placements for p in offered.known) else offered.unlisted,
            profiles=offered.known,
        )

    # --- MIG ------------------------------------------------------------------------------------

    def mode(self) -> MigMode | None:
        """Read the MIG mode; None where the GPU has none.

        A GPU that showed a mode before, or offers MIG profiles, has MIG whatever it answers now.
        """
        try:
            mode = nvml.mig_mode(self.handle)
        except DriverError as error:
            if not is_unsupported(error) or self._has_mig:
                raise
            if self.profiles.learn(MigMode(current=False, pending=False)):
                raise
            too_old = error.code == FUNCTION_NOT_FOUND
            self.profiles.unlisted = error.message if too_old else ""
            return None
        self._has_mig = True
        return mode

    def mode_change_needs_reset(self) -> bool:
        if self.needs_reset is None:
            by_generation = self.identity().compute_capability >= _RESETLESS_SINCE
            self.needs_reset = not if_supported(
                lambda: nvml.changes_mode_without_reset(self.handle), by_generation
            )
        return self.needs_reset

    def mig_devices(self, first: int = 0) -> Iterator[Device]:
        """The handles of MIG devices by index, from the `first` on and then those before it; gaps
        in the numbering are skipped.
        """
        if not self._max_mig_devices:  # asked with MIG on, since it is 0 with MIG off
            most = _read(self.handle, "nvmlDeviceGetMaxMigDeviceCount", 0)
            self._max_mig_devices = most or max(
                (place.start + place.size for p in self.profiles.known for place in p.placements),
                default=0,
            )
        for index in (*range(first, self._max_mig_devices), *range(first)):
            try:
                yield nvml.mig_device(self.handle, index)
            except DriverError as error:
                if is_unsupported(error):
                    return
                if error.code not in NOT_KNOWN:
                    raise

    # --- profiles -------------------------------------------------------------------------------

    def profile(self, profile_id: int) -> GpuInstanceProfile | None:
        """Look up a profile, None where there is none. Reads them if NVML was restarted since."""
        if not self.profiles.known and (mode := self.mode()):
            self.profiles.learn(mode, confirm=False)
        return next((p for p in self.profiles.known if p.id == profile_id), None)


def _cuda_version() -> tuple[int, int]:
    number = int(if_supported(lambda: nvml.call("nvmlSystemGetCudaDriverVersion_v2"), 0))
    return number // 1000, number % 1000 // 10


def _read(device: Device, function: str, otherwise: object) -> Any:
    return if_supported(lambda: nvml.call(function, device), otherwise)
