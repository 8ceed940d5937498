"""Which devices a GPU offers to claims, by the mode, the plan and the card; and why not others.

- A GPU that no plan names is for claims as a whole and, in mode `dynamic`, in parts. Where changing
  MIG mode needs a reset (Ampere) it is so only in the mode it is in.
- A plan with `mig: disabled` fixes the GPU as a whole; `mig: enabled` leaves the parts to claims.
- A planned layout fixes its instances where they are; what cannot lie beside them is not offered,
  the rest is for claims unless the plan says `dra: false`.
- What the plan shares by MPS or divides is not offered: no claim can have all of it.
- Where the plan leaves the GPU's MIG side alone, a GPU outside MIG mode is offered as a whole.
- Where claims may share devices, by the settings or the plan's entry, each GPU that is offered as a
  whole, or each MIG device, is for several claims, unless the plan shares it by MPS or says
  `dra: false`.

In mode `static` nothing is made, so that only what the plan fixes and GPUs outside MIG mode are
offered, and no device takes from a counter: Kubernetes has those only where `dynamic` can be.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final, assert_never

from nodeagent.claims.capacity import capacity_of, policies
from nodeagent.claims.names import WHOLE_GPU, mig_device_name, places
from nodeagent.claims.offering.counters import Amounts, CounterScheme, fits, mismatch
from nodeagent.claims.offering.devices import (
    GpuFacts,
    OfferedDevice,
    mig_device,
    shared_device,
    whole_gpu,
)
from nodeagent.plan.desired import DesiredGpu, Layout, MigDisabled, MigEnabled, SharedBy
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.remedies import idle_reset_remedy
from nodeagent.plan.resolve_mps import VOLTA
from nodeagent.structs import Struct

_NOTHING_MADE: Final = "with dra.mode static nothing is made"


class Mode(StrEnum):
    """`static` offers what is there by plan; `dynamic` makes MIG devices when they are claimed."""

    OFF = "off"
    STATIC = "static"
    DYNAMIC = "dynamic"


class FixedInstance(Struct, frozen=True):
    """A GPU instance of a planned layout, at its first memory slice.

    `kept_back` says why it keeps its place and is not offered, "": it is.
    """

    profile: str
    start: int
    kept_back: str = ""

    @property
    def device(self) -> str:
        return mig_device_name(self.profile, self.start)


class Planned(Struct, frozen=True):
    """What the plan says of a GPU that it names. `fixed` are the instances of a planned layout,
    none where it is no layout, and `is_there`: all of the layout is.
    """

    goal: DesiredGpu
    fixed: tuple[FixedInstance, ...] = ()
    is_there: bool = True

    def fixes(self, device: str) -> bool:
        """Whether the device is the plan's, so that a claim only uses it."""
        if device == WHOLE_GPU:
            return self.goal.mig is None or isinstance(self.goal.mig, MigDisabled)
        return any(instance.device == device for instance in self.fixed)


class GpuRules(Struct, frozen=True):
    """What of one GPU claims may have.

    `planned` is None where no plan names it. `closed` says why nothing is offered at all, "": it
    is. `share`, `share_mig`: how claims share a GPU, or its MIG devices, of which the plan does not
    say it.
    """

    mode: Mode = Mode.DYNAMIC
    planned: Planned | None = None
    closed: str = ""
    share: SharedBy = "off"
    share_mig: SharedBy = "off"

    @property
    def is_off(self) -> bool:
        return self.mode is Mode.OFF or bool(self.closed)

    @property
    def plan_instances(self) -> tuple[FixedInstance, ...]:
        return self.planned.fixed if self.planned else ()

    def is_fixed(self, device: str) -> bool:
        """Whether a claim only uses the device, which is neither made nor changed for it."""
        by_plan = self.planned is not None and self.planned.fixes(device)
        return self.mode is Mode.STATIC or by_plan

    def _wanted(self, device: str) -> SharedBy:
        by_plan = self.planned.goal.share if self.planned else None
        by_setting = self.share if device == WHOLE_GPU else self.share_mig
        return by_setting if by_plan is None else by_plan

    def shared_by(self, gpu: Gpu, device: str) -> SharedBy:
        """How claims share the GPU's device, where it is offered."""
        return "off" if self.why_not_shared(gpu, device) else self._wanted(device)

    def why_not_shared(self, gpu: Gpu, device: str) -> str:
        """Why claims do not share the GPU's device; "": they do."""
        planned, wanted = self.planned, self._wanted(device)
        if self.mode is not Mode.DYNAMIC or self.is_off:
            return self.closed or _NOTHING_MADE
        if wanted == "off":
            setting = "dra.share" if device == WHOLE_GPU else "dra.share_mig"
            return f"{_entry_of(planned, f'the setting {setting}')} has share off"
        if planned and not planned.goal.dra:
            return f"{_entry_of(planned)} says dra: false"
        if planned and (planned.goal.mps or (planned.goal.time_slice and wanted != "time")):
            return f"{_entry_of(planned)} says how the GPU is shared"
        return self.cannot_be_shared(gpu, device)

    def cannot_be_shared(self, gpu: Gpu, device: str) -> str:
        """Why the card's device cannot be shared as is wanted; "": it can."""
        wanted, place = self._wanted(device), places(gpu).get(device)
        if wanted == "off":
            return ""
        memory = capacity_of(gpu, place.profile if place else None).memory
        if not policies(memory, wanted):
            name = f"{place.profile.name} of " if place else ""
            return f"{name}{gpu.title} has too little memory for shares ({wanted})"
        if wanted != "time" and gpu.compute_capability < VOLTA:
            return f"{gpu.title} cannot limit MPS clients"
        return ""


def _entry_of(planned: Planned | None, otherwise: str = "") -> str:
    return f"{planned.goal.path} of the plan" if planned else otherwise


class OfferedNames(Struct, frozen=True):
    """The names of the devices, and why they are fewer than the mode promises (None: they are not).

    `counted`: MIG devices and the whole GPU take from the counters.
    """

    names: tuple[str, ...] = ()
    counted: bool = False
    reason: Problem | None = None

    def device(
        self, gpu: Gpu, name: str, facts: GpuFacts, shared_by: SharedBy = "off"
    ) -> OfferedDevice:
        """The GPU's device of that name as it is published; it has to be one of `places`, or the
        whole GPU.
        """
        scheme, place = CounterScheme.of(gpu), places(gpu).get(name)
        needs = scheme.consumption(place) if place else scheme.totals
        takes = needs if self.counted else {}
        device = mig_device(gpu, facts, place, takes) if place else whole_gpu(gpu, facts, takes)
        return shared_device(device, capacity_of(gpu, place.profile if place else None), shared_by)


_NOTHING_HELD: Final[Mapping[str, OfferedDevice]] = {}


def offered_names(
    gpu: Gpu, rules: GpuRules, held: Mapping[str, OfferedDevice] = _NOTHING_HELD
) -> OfferedNames:
    """`held` are the devices that claims have, as they are published: nothing is offered that
    conflicts with one that does not take from the counters.
    """
    if rules.is_off:
        return OfferedNames()
    fixed = rules.plan_instances
    uncounted = [name for name, device in held.items() if not device.consumes]
    pinned = {*(instance.device for instance in fixed), *uncounted} - {WHOLE_GPU}
    reason: Problem | None = None
    counted = rules.mode is Mode.DYNAMIC and bool(gpu.profiles)
    if counted and (difference := mismatch(gpu, frozenset(pinned))):
        counted = False
        reason = gpu.problem(Code.UNSUPPORTED, "notOffered", difference=difference)
    makes = counted and (gpu.in_mig_mode or not gpu.mode_change_needs_reset)
    whole = not _why_no_whole(gpu, rules.planned, makes=makes)
    parts = not _why_no_parts(gpu, rules.planned)
    known = places(gpu)
    names = [i.device for i in fixed if not i.kept_back and i.device in known]
    if parts and makes:
        names += _beside(gpu, pinned, whole_taken=WHOLE_GPU in uncounted)
    elif parts and counted:
        reason = _reset_required(gpu, rules.planned)
    if whole and not pinned:
        names.append(WHOLE_GPU)
    return OfferedNames(tuple(names), counted, reason)


def refusal(rules: GpuRules, gpu: Gpu, device: str) -> str:
    """Why no claim may have the device, which is one of the GPU's; "" where one may."""
    if rules.closed:
        return rules.closed
    offered = offered_names(gpu, rules)
    if device in offered.names:
        return ""
    if offered.reason:
        return offered.reason.message
    if device == WHOLE_GPU:
        why = _why_no_whole(gpu, rules.planned, makes=False)
    else:
        kept_back = (one.kept_back for one in rules.plan_instances if one.device == device)
        why = next(kept_back, "") or _why_no_parts(gpu, rules.planned)
    if not why and rules.mode is Mode.STATIC:
        return f"no plan has it, and {_NOTHING_MADE}"
    if not why and rules.planned is None:
        return _reset_required(gpu, None).message
    return why or "there is no room for it beside the plan's instances"


def _reset_required(gpu: Gpu, planned: Planned | None) -> Problem:
    case = "forClaims" if planned else "wholeForClaims"
    return gpu.problem(Code.RESET_REQUIRED, case, reset=idle_reset_remedy(gpu))


def _why_no_whole(gpu: Gpu, planned: Planned | None, *, makes: bool) -> str:
    """Why the GPU is not offered as a whole; "": it is. `makes`: its MIG devices come and go."""
    if planned is None:
        free = not gpu.in_mig_mode or (makes and not gpu.mode_change_needs_reset)
        return "" if free else f"{gpu.title} is in MIG mode"
    entry, goal = _entry_of(planned), planned.goal
    match goal.mig:
        case None | MigDisabled() if goal.mps:
            return f"{entry} shares the GPU by MPS"
        case None if gpu.in_mig_mode:
            return f"{entry} leaves MIG on {gpu.title} as it is"
        case None | MigDisabled():
            return ""
        case MigEnabled() | Layout():
            return f"{entry} has MIG enabled"
        case _:
            assert_never(goal.mig)


def _why_no_parts(gpu: Gpu, planned: Planned | None) -> str:
    """Why nothing is made of the GPU beside what the plan fixes; "": whatever can be is."""
    if planned is None:
        return ""
    entry, goal = _entry_of(planned), planned.goal
    match goal.mig:
        case None:
            return f"{entry} leaves MIG on {gpu.title} as it is"
        case MigDisabled():
            return f"{entry} has MIG disabled"
        case Layout() if not planned.is_there:
            return f"the layout of {entry} is not there yet"
        case MigEnabled() | Layout():
            return "" if goal.dra else f"{entry} says dra: false"
        case _:
            assert_never(goal.mig)


def _beside(gpu: Gpu, pinned: Collection[str], *, whole_taken: bool) -> list[str]:
    """The MIG devices that can be there together with the pinned ones."""
    known, scheme = places(gpu), CounterScheme.of(gpu)
    taken: list[Amounts] = [scheme.consumption(known[name]) for name in pinned if name in known]
    if whole_taken:
        taken.append(scheme.totals)
    left = scheme.left(taken)
    return [
        name
        for name, place in known.items()
        if name not in pinned and fits(scheme.consumption(place), left)
    ]
