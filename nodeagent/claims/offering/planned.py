"""A plan and claims on one GPU: what the plan fixes for claims, what they fix for it, and where its
instances were before the machine was started.

A claim borrows an instance of the plan's; releasing the claim does not destroy it. In return the
plan neither takes it away nor moves it as long as the claim has it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import json

from nodeagent.claims.model import ClaimRecord
from nodeagent.claims.offering.gpu_rules import FixedInstance, Planned
from nodeagent.claims.parts import daemon_of_part, reserved_on
from nodeagent.errors import NodeagentError
from nodeagent.files.state import StateFile, StateFormat
from nodeagent.plan.desired import (
    DesiredGpu,
    Layout,
    MigDisabled,
    MigEnabled,
    Reserved,
    WantedInstance,
    without,
)
from nodeagent.plan.layouts import Card
from nodeagent.plan.observed import DeviceDaemon, Gpu, GpuInstance, Placement
from nodeagent.plan.search import best_layout
from nodeagent.plan.shares import WantedMps
from nodeagent.structs import Struct, replace

# --- what claims have of the plan -----------------------------------------------------------------


def planned(goal: DesiredGpu, gpu: Gpu, records: Iterable[ClaimRecord]) -> Planned:
    """What the plan's goal of the GPU means for claims, which have these records.

    Where an instance of a planned layout will lie is known only once it is there: until all are,
    claims get nothing new beside them.
    """
    if not isinstance(goal.mig, Layout):
        return Planned(goal)
    wanted = goal.mig.instances
    own = without(gpu, (*goal.reserved, *reserved_on(gpu.uuid, records))).instances
    fixed = tuple(
        FixedInstance(one.profile, one.placement.start, kept_back=_kept_back(one))
        for one in _kept(wanted, own)
    )
    return Planned(goal, fixed, is_laid_out(wanted, own))


def _kept(wanted: Sequence[WantedInstance], own: Sequence[GpuInstance]) -> Iterator[GpuInstance]:
    """The instances that surely stay: of a profile of which there are too many, only those at the
    places that are asked for.
    """
    for profile in dict.fromkeys(one.profile for one in wanted):
        here = [one for one in own if one.profile == profile and one.compute]
        starts = {w.start for w in wanted if w.profile == profile and w.start is not None}
        rest = [one for one in here if one.placement.start not in starts]
        floating = Counter(w.slices for w in wanted if w.profile == profile and w.start is None)
        enough = Counter(c.slices for one in rest for c in one.compute) <= floating
        yield from (one for one in here if enough or one.placement.start in starts)


def _kept_back(instance: GpuInstance) -> str:
    """Why it is no device of claims, although it stays."""
    device, *more = instance.compute
    if more or device.profile != instance.profile:
        return "the plan divides it"
    return "the plan shares it by MPS" if _is_plans(device.mps) else ""


def _is_plans(mps: WantedMps | DeviceDaemon | None) -> bool:
    """Whether there is one of the plan's: claims have shares alone of a device that is fixed."""
    wanted = mps.runs if isinstance(mps, DeviceDaemon) else mps
    return wanted is not None and not wanted.sharing.of_claims


def is_laid_out(wanted: Sequence[WantedInstance], own: Sequence[GpuInstance]) -> bool:
    """Whether all that the layout asks for is there, and nothing else."""
    asked = Counter((one.profile, one.slices) for one in wanted)
    found = Counter((one.profile, c.slices) for one in own for c in one.compute)
    places = {(one.profile, one.placement.start) for one in own}
    fixed = ((one.profile, one.start) for one in wanted if one.start is not None)
    return asked == found and places.issuperset(fixed)


# --- what the plan has of claims ------------------------------------------------------------------


def goal_with_claims(
    goal: DesiredGpu, gpu: Gpu, held: tuple[Reserved, ...], records: Iterable[ClaimRecord]
) -> DesiredGpu:
    """The plan's goal with what claims hold left alone, and what they use of the plan's in place.

    What the goal has no place for any more is reserved, too, so that a plan which needs it is
    blocked and names the claim.
    """
    goal = replace(goal, reserved=held)
    if not gpu.answers:
        return goal
    here = [(d, r.title) for r in records for d in r.devices if d.gpu == gpu.uuid and d.fixed]
    devices, shared = [device for device, _ in here], set[Placement | None]()
    for device, title in here:
        if device.placement not in shared:
            used = Reserved(device.profile, device.placement, title)
            goal = _keeping(goal, gpu, used, daemon_of_part(device, devices))
            shared |= {device.placement} if device.shared else set()
    return goal


def _keeping(goal: DesiredGpu, gpu: Gpu, used: Reserved, daemon: WantedMps | None) -> DesiredGpu:
    """The goal with the device where it is, shared by the claims' daemon where they have one."""
    whole = used.placement is None
    match goal.mig:
        case None if not (whole and goal.mps):
            return goal
        case MigDisabled() if whole and goal.mps is None:
            return goal
        case MigEnabled() if not whole:
            return goal
        case Layout() as layout if pinned := _pinned(layout, gpu, used, daemon, goal.reserved):
            return replace(goal, mig=pinned)
        case _:
            return replace(goal, reserved=(*goal.reserved, used))


def _pinned(
    layout: Layout, gpu: Gpu, used: Reserved, daemon: WantedMps | None, reserved: Sequence[Reserved]
) -> Layout | None:
    """The layout with one of its instances fixed there, to be used as it is; None where that
    cannot be.
    """
    profile = gpu.profile(used.profile)
    if profile is None or used.placement is None:
        return None
    place = used.placement.start
    for start in (place, None):  # one that is there in any case, before one that may be anywhere
        for number, one in enumerate(layout.instances):
            same = (one.profile, one.slices, one.start) == (profile.name, profile.slices, start)
            if same and one.mps is None:
                there = replace(one, start=place, mps=daemon)
                wanted = (*layout.instances[:number], there, *layout.instances[number + 1 :])
                possible = best_layout(Card.of(gpu), wanted, (), reserved=reserved) is not None
                return replace(layout, instances=wanted) if possible else None
    return None


# --- where its instances were ---------------------------------------------------------------------
# A layout says how many of each profile there are, and mostly not where: that is found when it is
# made, beside what is there then. After a reboot it is made in the same places, so that the devices
# that claims know by their names are there again.

FILE_NAME: Final = "planned-places.json"
_MAX_BYTES = 1 << 20  # bytes; a GPU has at most some 1,000


class PlannedPlace(Struct, frozen=True):
    """One MIG device of a layout: `slices` of compute in a GPU instance of `profile` at the memory
    slice `start`; `mps`: it has a daemon.
    """

    profile: str
    slices: int
    start: int
    mps: bool = False


Places = dict[str, tuple[PlannedPlace, ...]]  # by UUID of the GPU


def planned_places_file(path: Path | None) -> StateFile[Places]:
    """The file; `path` None: nothing is kept."""
    return StateFile(path, _FORMAT)


class PlannedPlaces:
    """`load` and `record` block on the disk; call them in a thread, one at a time."""

    def __init__(self, file: StateFile[Places]) -> None:
        self.file = file
        self._known: Places = {}

    def load(self) -> None:
        self._known = self.file.load() or {}

    def as_before(self, goal: DesiredGpu, gpu: Gpu) -> DesiredGpu:
        """The goal with the recorded places of its layout, where that can be so and nothing of it
        lies elsewhere by now.
        """
        known = self._known.get(gpu.uuid, ())
        if not known or not isinstance(goal.mig, Layout):
            return goal
        wanted = _placed(goal.mig.instances, known)
        own = without(gpu, goal.reserved).instances
        if wanted is None or {*_places(own)} - {*known}:
            return goal
        if best_layout(Card.of(gpu), wanted, (), reserved=goal.reserved) is None:
            return goal
        return replace(goal, mig=replace(goal.mig, instances=wanted))

    def record(
        self, gpus: Iterable[Gpu], goals: Mapping[str, DesiredGpu], records: Sequence[ClaimRecord]
    ) -> None:
        """Keep the places of the layouts that are there. Raises nothing: the file says what is
        wrong with it, and it is tried again.
        """
        known = dict(self._known)
        for gpu in gpus:
            goal = goals.get(gpu.uuid)
            if goal is None or not isinstance(goal.mig, Layout):
                continue
            held = (*goal.reserved, *reserved_on(gpu.uuid, records))
            own = without(gpu, held).instances
            if is_laid_out(goal.mig.instances, own):
                known[gpu.uuid] = tuple(sorted(_places(own), key=_order))
        if known != self._known:
            try:
                self.file.save(known)
            except NodeagentError:
                return
            self._known = known


def _placed(
    wanted: Sequence[WantedInstance], known: Sequence[PlannedPlace]
) -> tuple[WantedInstance, ...] | None:
    """Each at a recorded place of one like it; None where they are others."""
    left = list(known)
    found: dict[int, WantedInstance] = {}
    # Those that name their place come first, so that no other takes it.
    for number in sorted(range(len(wanted)), key=lambda n: wanted[n].start is None):
        one = wanted[number]
        place = next((place for place in left if _is_like(one, place)), None)
        if place is None:
            return None
        left.remove(place)
        found[number] = replace(one, start=place.start)
    return None if left else tuple(found[number] for number in range(len(wanted)))


def _is_like(one: WantedInstance, place: PlannedPlace) -> bool:
    same = (one.profile, one.slices, _is_plans(one.mps))
    return same == (place.profile, place.slices, place.mps) and one.start in (None, place.start)


def _places(instances: Iterable[GpuInstance]) -> Iterable[PlannedPlace]:
    """Of their devices."""
    for one in instances:
        for device in one.compute:
            mps = _is_plans(device.mps)
            yield PlannedPlace(one.profile, device.slices, one.placement.start, mps)


def _order(place: PlannedPlace) -> tuple[object, ...]:
    return place.profile, place.start, place.slices, place.mps


def _encode(places: Places) -> bytes:
    return json.format(json.encode(places, order="deterministic"), indent=1) + b"\n"


_FORMAT: StateFormat[Places] = StateFormat(
    "planned-places", 1, _MAX_BYTES, _encode, json.Decoder(Places).decode
)
