"""A plan and claims on one GPU: what the plan fixes for claims, and what they fix for it. Pure.

A claim on an instance of the plan's only uses it: the instance is not made for the claim, and it
outlives it. In return the plan neither takes it away nor moves it as long as the claim has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from nodeagent.claims.model import ClaimRecord
from nodeagent.claims.offering.gpu_rules import FixedInstance, Planned
from nodeagent.claims.parts import reserved_on
from nodeagent.plan.desired import (
    DesiredGpu,
    Layout,
    MigDisabled,
    MigEnabled,
    Reserved,
    WantedInstance,
)
from nodeagent.plan.layouts import Card
from nodeagent.plan.observed import Access, Gpu, GpuInstance
from nodeagent.plan.reserved import without
from nodeagent.plan.search import best_layout
from nodeagent.structs import replace

if TYPE_CHECKING:
    from nodeagent.claims.files.records import UnreadableRecord

# --- what claims have of the plan -----------------------------------------------------------------


def planned(goal: DesiredGpu, gpu: Gpu, held: Iterable[Reserved]) -> Planned:
    """What the plan's goal of the GPU means for claims; `held` is what they hold there now.

    Where an instance of a planned layout will lie is known only once it is there: until all are,
    claims get nothing new beside them.
    """
    if not isinstance(goal.mig, Layout):
        return Planned(
            goal.mig,
            room=goal.dra,
            mps=goal.mps is not None,
            path=goal.path,
            time_slice=goal.time_slice is not None,
        )
    wanted = goal.mig.instances
    own = without(gpu, (*goal.reserved, *held)).instances
    fixed = tuple(
        FixedInstance(one.profile, one.placement.start, kept_back=_kept_back(one))
        for one in _kept(wanted, own)
    )
    is_there = is_laid_out(wanted, own)
    return Planned(goal.mig, fixed, goal.dra, is_there=is_there, path=goal.path)


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
    return "the plan shares it by MPS" if device.mps else ""


def is_laid_out(wanted: Sequence[WantedInstance], own: Sequence[GpuInstance]) -> bool:
    """Whether all that the layout asks for is there, and nothing else."""
    asked = Counter((one.profile, one.slices) for one in wanted)
    found = Counter((one.profile, c.slices) for one in own for c in one.compute)
    places = {(one.profile, one.placement.start) for one in own}
    fixed = ((one.profile, one.start) for one in wanted if one.start is not None)
    return asked == found and places.issuperset(fixed)


# --- what the plan has of claims ------------------------------------------------------------------


def beside_records(
    goal: DesiredGpu,
    gpu: Gpu,
    records: Sequence[ClaimRecord],
    unreadable: Iterable[UnreadableRecord],
) -> DesiredGpu:
    """The plan's goal beside what the records of claims say that these have."""
    held_back = (
        Reserved("", None, f"the record {one.path}, which cannot be read")
        for one in unreadable
        if one.concerns(gpu.uuid)
    )
    return beside_claims(goal, gpu, (*held_back, *reserved_on(gpu.uuid, records)), records)


def beside_claims(
    goal: DesiredGpu, gpu: Gpu, held: tuple[Reserved, ...], records: Iterable[ClaimRecord]
) -> DesiredGpu:
    """The plan's goal with what claims hold left alone, and what they use of the plan's in place.

    What the goal has no place for any more is reserved, too, so that a plan which needs it is
    blocked and names the claim.
    """
    goal = replace(goal, reserved=held)
    if gpu.access is not Access.OK:
        return goal
    for record in records:
        for device in record.devices:
            if device.gpu == gpu.uuid and device.fixed:
                used = Reserved(device.profile, device.placement, record.title)
                goal = _keeping(goal, gpu, used)
    return goal


def _keeping(goal: DesiredGpu, gpu: Gpu, used: Reserved) -> DesiredGpu:
    """The goal with the device where it is."""
    whole = used.placement is None
    match goal.mig:
        case None if not (whole and goal.mps):
            return goal
        case MigDisabled() if whole and goal.mps is None:
            return goal
        case MigEnabled() if not whole:
            return goal
        case Layout() as layout if pinned := _pinned(layout, gpu, used, goal.reserved):
            return replace(goal, mig=pinned)
        case _:
            return replace(goal, reserved=(*goal.reserved, used))


def _pinned(
    layout: Layout, gpu: Gpu, used: Reserved, reserved: Sequence[Reserved]
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
                there = replace(one, start=place)
                wanted = (*layout.instances[:number], there, *layout.instances[number + 1 :])
                possible = best_layout(Card.of(gpu), wanted, (), reserved=reserved) is not None
                return replace(layout, instances=wanted) if possible else None
    return None
