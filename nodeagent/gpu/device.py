"""What does not change about a GPU: identity, MIG capability, and the profiles it offers.

It is read once and kept until NVML is started anew or the handle turns out to be another GPU's.
All methods are called in the GPU's worker thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import pynvml

from nodeagent.errors import DriverError
from nodeagent.gpu import nvml
from nodeagent.gpu.nvml import COMPUTE_INSTANCE_KINDS, Device, GpuInstanceHandle
from nodeagent.gpu.nvml_errors import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NOT_KNOWN,
    is_unsupported,
)
from nodeagent.gpu.recent import Recent
from nodeagent.gpu.workers import Worker
from nodeagent.plan.names import ProfileName
from nodeagent.plan.observed import (
    ComputeInstanceProfile,
    Gpu,
    GpuInstanceProfile,
    MigMode,
    Placement,
)
from nodeagent.structs import replace

_RESETLESS_SINCE = (9, 0)  # compute capability; Hopper and later change MIG mode at once
# Some drivers count fewer instances of a profile than fit (seen on A30), so lists get spare room.
_SPARE_ROOM = 16
_PROFILE_KINDS = pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT
_COMPUTE_KINDS = pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
_KINDS_LIMIT = 32  # where a driver never says that its list has ended

# What a driver that gives no names calls special kinds of profiles.
_ATTRIBUTES = {
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME: "+me.all",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME: "+me.all",
}
_GIB = 1 << 30
_VIRTUAL = "it is a virtual machine"

Value = TypeVar("Value")
Other = TypeVar("Other")


Boards = dict[tuple[object, ...], dict[object, Any]]


class GpuDevice:
    """One GPU by NVML's index: its handle, the thread that makes its calls, and what need not be
    read twice.
    """

    def __init__(self, index: int, boards: Boards | None = None) -> None:
        self.index = index
        self._boards: Boards = {} if boards is None else boards
        self.worker = Worker(f"GPU {index}")
        self.uuid = ""  # stays until another is read
        self.no_reset = ""  # a reset has shown it, and NVML is started anew around each
        self.gpm_samples: tuple[int, list[object]] = (-1, [])  # by session of NVML, for readers
        self.forget()

    def forget(self) -> None:
        """There may be another GPU or another driver now, with other figures."""
        self._handle: Device | None = None
        self._identity: Gpu | None = None
        self._common: dict[object, Any] | None = None
        self.needs_reset: bool | None = None  # by a change of the MIG mode; None: not known yet
        self.profiles: tuple[GpuInstanceProfile, ...] = ()  # as far as they are known
        self._compute: dict[int, tuple[ComputeInstanceProfile, ...]] = {}
        self._has_mig = False
        self._max_mig_devices = 0
        self._unlisted = ""  # the last answer in place of MIG mode, profiles or placements
        self._none_offered_with: bool | None = None
        self._denied_once: frozenset[int] = frozenset()  # kinds of GPU instances
        self._whole: dict[int, tuple[ComputeInstanceProfile, ...]] = {}
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
        """The handle may be stale: the GPU was reset, NVML restarted, or a call refused it."""
        self._handle = None
        self.recent.stale()

    # --- identity -------------------------------------------------------------------------------

    def identity(self) -> Gpu:
        """What does not change; values that the driver lacks have the defaults of `Gpu`."""
        handle = self.handle
        if self._identity is None:
            pci = _read(handle, "nvmlDeviceGetPciInfo", None)
            self._identity = Gpu(
                index=self.index,
                uuid=self.uuid,
                name=nvml.name(handle),
                pci_bus_id=nvml.text(pci.busId) if pci else "",
                pci_device_id=pci.pciDeviceId if pci else 0,
                pci_subsystem_id=pci.pciSubSystemId if pci else 0,
                minor=_read(handle, "nvmlDeviceGetMinorNumber", None),
                memory=supported(lambda: nvml.memory(handle).total, 0),
                compute_capability=_read(handle, "nvmlDeviceGetCudaComputeCapability", (0, 0)),
                cuda_version=_cuda_version(),
                no_reset=_VIRTUAL
                if _read(handle, "nvmlDeviceGetVirtualizationMode", 0)
                == pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH
                else "",
            )
        return self._identity

    @property
    def _board(self) -> dict[object, Any]:
        """What GPUs of the same board have in common, as far as one of them has read it. They are
        read at the same time, and none waits for another.
        """
        if self._common is None:
            one = self.identity()
            board = (one.name, one.pci_device_id, one.pci_subsystem_id, one.memory, one.no_reset)
            bios = _read(self.handle, "nvmlDeviceGetVbiosVersion", "")
            self._common = self._boards.setdefault((*board, bios), {})
        return self._common

    @property
    def picture(self) -> Gpu:
        if self._identity is None:
            return Gpu(index=self.index, uuid=self.uuid)
        return replace(
            self._identity,
            mode_change_needs_reset=bool(self.needs_reset),
            no_reset=self.no_reset or self._identity.no_reset,
            unlisted="" if any(p.placements for p in self.profiles) else self._unlisted,
            profiles=self.profiles,
        )

    # --- MIG ------------------------------------------------------------------------------------

    def mode(self) -> MigMode | None:
        """Read now; None where the GPU has no MIG.

        A GPU that showed a mode before, or offers MIG profiles, has MIG whatever it answers now.
        """
        try:
            mode = nvml.mig_mode(self.handle)
        except DriverError as error:
            if not is_unsupported(error) or self._has_mig:
                raise
            if self.learn_profiles(MigMode(current=False, pending=False)):
                raise
            too_old = error.code == FUNCTION_NOT_FOUND
            self._unlisted = error.message if too_old else ""
            return None
        self._has_mig = True
        return mode

    def mode_change_needs_reset(self) -> bool:
        if self.needs_reset is None:
            by_generation = self.identity().compute_capability >= _RESETLESS_SINCE
            self.needs_reset = not supported(
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
                (place.start + place.size for p in self.profiles for place in p.placements),
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
        """None where the GPU offers none of that id; asked anew after the reset of another GPU."""
        if not self.profiles and (mode := self.mode()):
            self.learn_profiles(mode, confirm=False)
        return next((p for p in self.profiles if p.id == profile_id), None)

    def compute_profiles(self, profile_id: int) -> tuple[ComputeInstanceProfile, ...]:
        return self._compute.get(profile_id, self._whole.get(profile_id, ()))

    def learn_profiles(
        self, mode: MigMode, *, confirm: bool = True
    ) -> tuple[GpuInstanceProfile, ...]:
        """The profiles of GPU instances, in NVML's order; asked once.

        A profile that the driver denied in two observations counts as denied while it runs
        (`confirm`: this is a new one). Drivers up to R535 list none while MIG is off; they are
        asked again once it is on.
        """
        if not self.profiles and self._none_offered_with != mode.current:
            first = 3 * self.index % _PROFILE_KINDS  # another on each, so that they share the work
            self._ask_for([*range(first, _PROFILE_KINDS), *range(first)])
            if self.profiles:
                self.profiles += tuple(_beyond(_PROFILE_KINDS, self._read_known))
            self._none_offered_with = None if self.profiles else mode.current
            if not self.profiles:
                nvml.uuid(self.handle)  # raises where it was the handle that failed
        elif confirm and self.profiles and self._denied_once:
            kinds, self._denied_once = self._denied_once, frozenset()
            self._ask_for(sorted(kinds))
            self._denied_once = frozenset()
        return self.profiles

    def _ask_for(self, kinds: Iterable[int]) -> None:
        answers = {kind: self._read_profile(kind) for kind in kinds}
        found = [*self.profiles, *(profile for profile in answers.values() if profile)]
        self.profiles = tuple(sorted(found, key=lambda profile: profile.kind))
        self._denied_once = frozenset(kind for kind, answer in answers.items() if answer is None)

    def _read_profile(self, kind: int) -> GpuInstanceProfile | None:
        try:
            return self._read_known(kind)
        except DriverError as error:
            if not _is_no(error):
                raise
            self._unlisted = self._unlisted or error.message
            return None

    def _read_known(self, kind: int) -> GpuInstanceProfile:
        """What one GPU lacks may be denied in passing, and is no answer for another."""
        known: GpuInstanceProfile | None = self._board.get(kind)
        if known is None:
            known = self._board[kind] = self._read_profile_with_places(kind)
        return known

    def _read_profile_with_places(self, kind: int) -> GpuInstanceProfile:
        handle = self.handle
        profile = nvml.gpu_instance_profile(handle, kind)
        name = profile_name(profile, self.identity().memory)
        no_places: tuple[Placement, ...] = ()
        ask = partial(nvml.gpu_instance_placements, handle, profile.id)
        places = _twice(ask, no_places, self._note_unsupported)
        return replace(profile, name=name, placements=places)

    def _note_unsupported(self, error: DriverError) -> bool:
        self._unlisted = error.message
        return is_unsupported(error)

    # The length that a list of instances of the profile never exceeds.
    def room_for(self, profile: GpuInstanceProfile) -> int:
        return max(profile.max_count, len(profile.placements)) + _SPARE_ROOM

    # --- compute instance profiles --------------------------------------------------------------

    def learn_compute(
        self, profile: GpuInstanceProfile, instance: GpuInstanceHandle
    ) -> tuple[ComputeInstanceProfile, ...]:
        """How instances of `profile` can be divided: asked once, of the first one there is."""
        if profile.id not in self._compute:
            key = ("compute", profile.id)
            kinds = [k for k, slices in COMPUTE_INSTANCE_KINDS.items() if slices <= profile.slices]
            found = self._board.get(key) or tuple(self._read_compute(profile, instance, kinds))
            if not found:
                return ()
            self._board[key] = found
            self._compute[profile.id] = found
            self.profiles = tuple(
                replace(p, compute=found) if p.id == profile.id else p for p in self.profiles
            )
        return self._compute[profile.id]

    def learn_whole(
        self, profile: GpuInstanceProfile, instance: GpuInstanceHandle
    ) -> tuple[ComputeInstanceProfile, ...]:
        """The kinds with as many slices as the GPU instance, without placements. Read once, in
        fewer calls than all kinds take.
        """
        known = self._compute.get(profile.id) or self._whole.get(profile.id)
        if not known:
            kinds = [k for k, slices in COMPUTE_INSTANCE_KINDS.items() if slices == profile.slices]
            key = ("whole", profile.id)
            known = self._board.get(key) or tuple(
                self._read_compute(profile, instance, kinds, places=False)
            )
            if known:
                self._whole[profile.id] = self._board[key] = known
        return tuple(compute for compute in known if compute.slices == profile.slices)

    def holds_one(self, profile: GpuInstanceProfile) -> bool:
        """Whether an instance of it is known to hold no other device once its slices are used.
        Several devices may share a single slice where the driver allows that.
        """
        if profile.slices > 1:
            return True
        known = self.compute_profiles(profile.id)
        return bool(known) and max(compute.max_count for compute in known) == 1

    def _read_compute(
        self,
        profile: GpuInstanceProfile,
        instance: GpuInstanceHandle,
        kinds: Iterable[int],
        *,
        places: bool = True,
    ) -> list[ComputeInstanceProfile]:
        answers = [self._read_compute_profile(instance, kind, places=places) for kind in kinds]
        found = [compute for compute in answers if compute]
        if all(compute.slices != profile.slices for compute in found):
            newer = _beyond(_COMPUTE_KINDS, partial(nvml.compute_profile, instance))
            found += (_placed(compute, instance) if places else compute for compute in newer)
        if not found:
            nvml.gpu_instance_info(instance)  # raises where it was the handle that failed
        return found

    def _read_compute_profile(
        self, instance: GpuInstanceHandle, kind: int, *, places: bool
    ) -> ComputeInstanceProfile | None:
        profile = _twice(lambda: nvml.compute_profile(instance, kind), None, _is_no)
        return _placed(profile, instance) if profile and places else profile


def _placed(profile: ComputeInstanceProfile, instance: GpuInstanceHandle) -> ComputeInstanceProfile:
    no_places: tuple[Placement, ...] = ()
    places = supported(lambda: nvml.compute_placements(instance, profile.id), no_places)
    return replace(profile, placements=places)


def _beyond(first: int, read: Callable[[int], Value]) -> Iterator[Value]:
    """What a driver newer than pynvml lists from that kind on, to the end of its own list."""
    for kind in range(first, _KINDS_LIMIT):
        try:
            yield read(kind)
        except DriverError as error:
            if error.code == INVALID_ARGUMENT:
                return
            if not is_unsupported(error):
                raise


def _cuda_version() -> tuple[int, int]:
    number = int(supported(lambda: nvml.call("nvmlSystemGetCudaDriverVersion_v2"), 0))
    return number // 1000, number % 1000 // 10


def _read(device: Device, function: str, otherwise: Other) -> Any:
    return supported(lambda: nvml.call(function, device), otherwise)


def supported(ask: Callable[[], Value], otherwise: Value) -> Value:
    """The answer, or `otherwise` where the driver or the GPU does not know such a thing."""
    return _twice(ask, otherwise, is_unsupported)


def _is_no(error: DriverError) -> bool:
    return is_unsupported(error) or error.code == INVALID_ARGUMENT


def _twice(
    ask: Callable[[], Value], otherwise: Other, is_no: Callable[[DriverError], bool]
) -> Value | Other:
    """A "no" counts when it is said twice: it is remembered for as long as the driver runs."""
    for _ in range(2):
        try:
            return ask()
        except DriverError as error:
            if not is_no(error):
                raise
    return otherwise


# --- names ----------------------------------------------------------------------------------------


def profile_name(profile: GpuInstanceProfile, gpu_memory: int) -> str:
    """The driver's name (`MIG 1g.10gb+me`) made canonical; older drivers give none, so it is made.

    `gpu_memory` in bytes, of the whole GPU.
    """
    try:
        return str(ProfileName.parse(profile.name.removeprefix("MIG ").strip()))
    except ValueError:
        gigabytes = _gigabytes(profile.memory, gpu_memory)
        return f"{profile.slices}g.{gigabytes}gb{_ATTRIBUTES.get(profile.kind, '')}"


def _gigabytes(memory: int, gpu_memory: int) -> int:
    """Eighths of the GPU, rounded up, of its memory in GiB, rounded up, rounded to a whole.

    The rule of NVIDIA's go-nvlib, which device plugin and mig-parted print too.
    """
    if not gpu_memory:
        return math.ceil(memory / _GIB)
    eighths = math.ceil(8 * memory / gpu_memory) / 8
    # Go's math.Round goes away from zero at a half; Python's round goes to the even number.
    return math.floor(eighths * math.ceil(gpu_memory / _GIB) + 0.5)
