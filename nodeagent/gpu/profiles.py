"""The profiles that a GPU offers, of GPU instances and of compute instances in them.

They are read once and kept with the device. All methods are called in the GPU's worker thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pynvml

from nodeagent.errors import DriverError
from nodeagent.gpu import nvml
from nodeagent.gpu.nvml import COMPUTE_INSTANCE_KINDS, GpuInstanceHandle
from nodeagent.gpu.nvml_errors import INVALID_ARGUMENT, is_unsupported
from nodeagent.plan.names import ProfileName
from nodeagent.plan.observed import ComputeInstanceProfile, GpuInstanceProfile, MigMode, Placement
from nodeagent.structs import replace

if TYPE_CHECKING:
    from nodeagent.gpu.device import GpuDevice

# Some drivers count fewer instances of a profile than fit (seen on A30), so lists get spare room.
_SPARE_ROOM = 16
_PROFILE_KINDS = pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT
_COMPUTE_KINDS = pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
_KINDS_LIMIT = 32  # where a driver never says that its list has ended

_GIB = 1 << 30

Value = TypeVar("Value")
Other = TypeVar("Other")


class Profiles:
    """Profiles of one GPU, as far as they are `known`. `unlisted` is the last answer in place of
    profiles or placements.
    """

    def __init__(self, gpu: GpuDevice) -> None:
        self._gpu = gpu
        self.known: tuple[GpuInstanceProfile, ...] = ()
        self.unlisted = ""
        self._compute: dict[int, tuple[ComputeInstanceProfile, ...]] = {}
        self._whole: dict[int, tuple[ComputeInstanceProfile, ...]] = {}
        self._none_offered_with: bool | None = None
        self._denied_once: frozenset[int] = frozenset()  # kinds of GPU instances

    def learn(self, mode: MigMode, *, confirm: bool = True) -> tuple[GpuInstanceProfile, ...]:
        """The profiles of GPU instances, in NVML's order; asked once.

        A profile that the driver denied in two observations counts as denied while it runs
        (`confirm`: this is a new one). Drivers up to R535 list none while MIG is off; they are
        asked again once it is on.
        """
        if not self.known and self._none_offered_with != mode.current:
            # Another one first on each GPU, so that they share the work.
            first = 3 * self._gpu.index % _PROFILE_KINDS
            self._ask_for([*range(first, _PROFILE_KINDS), *range(first)])
            if self.known:
                self.known += tuple(_beyond(_PROFILE_KINDS, self._read_known))
            self._none_offered_with = None if self.known else mode.current
            if not self.known:
                nvml.uuid(self._gpu.handle)  # raises where it was the handle that failed
        elif confirm and self.known and self._denied_once:
            kinds, self._denied_once = self._denied_once, frozenset()
            self._ask_for(sorted(kinds))
            self._denied_once = frozenset()
        return self.known

    def _ask_for(self, kinds: Iterable[int]) -> None:
        answers = {kind: self._read_profile(kind) for kind in kinds}
        found = [*self.known, *(profile for profile in answers.values() if profile)]
        self.known = tuple(sorted(found, key=lambda profile: profile.kind))
        self._denied_once = frozenset(kind for kind, answer in answers.items() if answer is None)

    def _read_profile(self, kind: int) -> GpuInstanceProfile | None:
        try:
            return self._read_known(kind)
        except DriverError as error:
            if not _is_no(error):
                raise
            self.unlisted = self.unlisted or error.message
            return None

    def _read_known(self, kind: int) -> GpuInstanceProfile:
        """Share what was read between equal boards, but no denial: that may be in passing."""
        known: GpuInstanceProfile | None = self._gpu.board.get(kind)
        if known is None:
            known = self._gpu.board[kind] = self._read_profile_with_places(kind)
        return known

    def _read_profile_with_places(self, kind: int) -> GpuInstanceProfile:
        handle = self._gpu.handle
        profile = nvml.gpu_instance_profile(handle, kind)
        name = profile_name(profile)
        no_places: tuple[Placement, ...] = ()
        ask = partial(nvml.gpu_instance_placements, handle, profile.id)
        places = _twice(ask, no_places, self._note_unsupported)
        return replace(profile, name=name, placements=places)

    def _note_unsupported(self, error: DriverError) -> bool:
        self.unlisted = error.message
        return is_unsupported(error)

    # --- compute instance profiles --------------------------------------------------------------

    def compute_of(self, profile_id: int) -> tuple[ComputeInstanceProfile, ...]:
        """The compute profiles of a GPU instance profile, as far as they are known."""
        return self._compute.get(profile_id, self._whole.get(profile_id, ()))

    def learn_compute(
        self, profile: GpuInstanceProfile, instance: GpuInstanceHandle
    ) -> tuple[ComputeInstanceProfile, ...]:
        """Learn how instances of `profile` divide: asked once, of the first one that exists."""
        if profile.id not in self._compute:
            key = ("compute", profile.id)
            kinds = [k for k, slices in COMPUTE_INSTANCE_KINDS.items() if slices <= profile.slices]
            found = self._gpu.board.get(key) or tuple(self._read_compute(profile, instance, kinds))
            if not found:
                return ()
            self._gpu.board[key] = found
            self._compute[profile.id] = found
            self.known = tuple(
                replace(p, compute=found) if p.id == profile.id else p for p in self.known
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
            known = self._gpu.board.get(key) or tuple(
                self._read_compute(profile, instance, kinds, places=False)
            )
            if known:
                self._whole[profile.id] = self._gpu.board[key] = known
        return tuple(compute for compute in known if compute.slices == profile.slices)

    def holds_one(self, profile: GpuInstanceProfile) -> bool:
        """Whether an instance of it is known to hold no other device once its slices are used.
        Several devices may share a single slice where the driver allows that.
        """
        if profile.slices > 1:
            return True
        known = self.compute_of(profile.id)
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


def room_for(profile: GpuInstanceProfile) -> int:
    """The length that a list of instances of the profile never exceeds."""
    return max(profile.max_count, len(profile.placements)) + _SPARE_ROOM


def _placed(profile: ComputeInstanceProfile, instance: GpuInstanceHandle) -> ComputeInstanceProfile:
    no_places: tuple[Placement, ...] = ()
    places = if_supported(lambda: nvml.compute_placements(instance, profile.id), no_places)
    return replace(profile, placements=places)


def _beyond(first: int, read: Callable[[int], Value]) -> Iterator[Value]:
    """Yield what a driver newer than pynvml lists from that kind on, to the end of its list."""
    for kind in range(first, _KINDS_LIMIT):
        try:
            yield read(kind)
        except DriverError as error:
            if error.code == INVALID_ARGUMENT:
                return
            if not is_unsupported(error):
                raise


def if_supported(ask: Callable[[], Value], otherwise: Value) -> Value:
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


def profile_name(profile: GpuInstanceProfile) -> str:
    """The driver's name (`MIG 1g.10gb+me`) made canonical; one by its sizes where that is none."""
    try:
        return str(ProfileName.parse(profile.name.removeprefix("MIG ").strip()))
    except ValueError:
        return f"{profile.slices}g.{math.ceil(profile.memory / _GIB)}gb"
