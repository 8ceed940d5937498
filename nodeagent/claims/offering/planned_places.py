"""Where a plan's instances are, kept for the next start of the machine.

A layout says how many of each profile there are, and mostly not where: that is found when it is
made, beside what is there then. After a reboot it is made in the same places, so that the devices
that claims know by their names are there again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import json

from nodeagent.claims.model import ClaimRecord
from nodeagent.claims.offering.planned import is_laid_out
from nodeagent.claims.parts import reserved_on
from nodeagent.errors import NodeagentError
from nodeagent.files.state import StateFile, StateFormat
from nodeagent.plan.desired import DesiredGpu, Layout, WantedInstance
from nodeagent.plan.layouts import Card
from nodeagent.plan.observed import Gpu, GpuInstance
from nodeagent.plan.reserved import without
from nodeagent.plan.search import best_layout
from nodeagent.structs import Struct, replace

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
    return StateFile(
        path,
        _FORMAT,
        what="where the plan's instances are",
        lost="after a reboot they may be made in other places",
        remedy="nothing needs to be done as long as the machine is not restarted",
    )


class PlannedPlaces:
    """`load` and `note` block on the disk; call them in a thread, one at a time."""

    def __init__(self, file: StateFile[Places]) -> None:
        self.file = file
        self._known: Places = {}

    def load(self) -> None:
        self._known = self.file.load() or {}

    def as_before(self, goal: DesiredGpu, gpu: Gpu) -> DesiredGpu:
        """The goal with the places of its layout that were noted, where that can be so and nothing
        of it lies elsewhere by now.
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

    def note(
        self,
        gpus: Iterable[Gpu],
        goals: Mapping[str, DesiredGpu],
        records: Sequence[ClaimRecord],
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
    """Each at a place that was noted for one like it; None where they are others."""
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
    same = (one.profile, one.slices, one.mps is not None)
    return same == (place.profile, place.slices, place.mps) and one.start in (None, place.start)


def _places(instances: Iterable[GpuInstance]) -> Iterable[PlannedPlace]:
    """Of their devices."""
    for one in instances:
        for device in one.compute:
            mps = device.mps is not None
            yield PlannedPlace(one.profile, device.slices, one.placement.start, mps)


def _order(place: PlannedPlace) -> tuple[object, ...]:
    return place.profile, place.start, place.slices, place.mps


def _encode(places: Places) -> bytes:
    return json.format(json.encode(places, order="deterministic"), indent=1) + b"\n"


def _decode(content: bytes) -> Places:
    return json.decode(content, type=Places)


_FORMAT: StateFormat[Places] = StateFormat("planned-places", 1, _MAX_BYTES, _encode, _decode)
