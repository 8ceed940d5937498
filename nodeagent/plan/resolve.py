"""A document meets the node: selectors become GPUs, profile names become the cards' own.

The document is checked as a whole. If anything in it is wrong for this node, it is refused
whole, with every fault that was found.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import assert_never

from nodeagent.errors import DocumentError
from nodeagent.plan.compute_instances import sizes_offered
from nodeagent.plan.desired import (
    DesiredGpu,
    DesiredMig,
    DesiredNode,
    DeviceSelector,
    InstanceEntry,
    Layout,
    MigDisabled,
    MigEnabled,
    MigLayout,
    MpsEntry,
    PlanDocument,
    PlanEntry,
    WantedInstance,
)
from nodeagent.plan.layouts import Card
from nodeagent.plan.mig import not_mig_capable, unlisted
from nodeagent.plan.names import ProfileName, device_name, find, nearest_profile
from nodeagent.plan.observed import Gpu, GpuInstanceProfile, ObservedNode
from nodeagent.plan.plan import Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.resolve_mps import OnGpu, mps_by_device, wanted_mps
from nodeagent.plan.search import best_layout, does_not_fit
from nodeagent.plan.shares import MAX_DEVICES, Host, TimeSlice
from nodeagent.structs import replace

_ANY_HOST = Host()

_INVALID = frozenset(
    {Code.INVALID_VALUE, Code.UNKNOWN_DEVICE, Code.DUPLICATE_DEVICE, Code.UNKNOWN_PROFILE}
)


def verdict_of(refusal: DocumentError) -> Verdict:
    """The verdict on a document that `resolve` refuses. INVALID: it names what the node does not
    have; UNSATISFIABLE: what it asks for can never be on these cards.
    """
    invalid = any(problem.code in _INVALID for problem in refusal.problems)
    return Verdict.INVALID if invalid else Verdict.UNSATISFIABLE


def resolve(document: PlanDocument, observed: ObservedNode, host: Host = _ANY_HOST) -> DesiredNode:
    """What the document asks of each GPU; for a GPU that several entries name, the last wins.
    Raises DocumentError with every fault.
    """
    problems: list[Problem] = []
    chosen: dict[str, DesiredGpu] = {}
    said: dict[str, tuple[PlanEntry, Gpu]] = {}
    for entry in document.entries:
        for gpu in select(entry, observed, problems):
            chosen[gpu.key] = _desired(OnGpu(gpu, host, problems), entry)
            said[gpu.key] = entry, gpu
    for entry in document.entries:
        if entry.mps is not None and entry.mps.together:
            gpus = [gpu for last, gpu in said.values() if last is entry]
            chosen |= _together(entry.mps, gpus, chosen, problems)
    if document.entries and not chosen and not problems:
        problems.append(_matches_nothing(document, observed))
    for gpu in observed.gpus:
        if not problems and gpu.key in chosen:
            problems += _impossible(chosen[gpu.key], gpu)
    if problems:
        raise DocumentError(tuple(dict.fromkeys(problems)))
    return DesiredNode(gpus=chosen, digest=document.digest)


def _impossible(desired: DesiredGpu, gpu: Gpu) -> list[Problem]:
    match desired.mig:
        case Layout(instances=wanted, path=path) if best_layout(Card.of(gpu), wanted, ()) is None:
            return [does_not_fit(gpu, wanted, path)]
    return []


def _matches_nothing(document: PlanDocument, observed: ObservedNode) -> Problem:
    names = ", ".join(dict.fromkeys(gpu.name for gpu in observed.gpus)) or "no GPU at all"
    path = document.entries[0].devices_path
    if any(entry.devices is None and entry.mig is not None for entry in document.entries):
        return Problem.of(Code.NOT_MIG_CAPABLE, "none", path=path, names=names)
    return Problem.of(Code.UNKNOWN_DEVICE, "none", path=path, names=names)


# --- what each should be ----------------------------------------------------------------------


def _desired(on: OnGpu, entry: PlanEntry) -> DesiredGpu:
    desired = DesiredGpu(None, entry.path, entry.when_in_use, dra=entry.dra, share=entry.share)
    if not on.gpu.answers:  # the planner reports it; nothing can be checked
        return desired
    mig = _desired_mig(on, entry)
    desired = replace(desired, mig=mig, time_slice=_time_slice_of(on, entry))
    if entry.mps is None or isinstance(entry.mig, MigLayout):
        return desired
    if isinstance(mig, MigDisabled) or (mig is None and not on.gpu.in_mig_mode):
        return replace(desired, mps=wanted_mps(on, entry.mps, memory=on.gpu.memory))
    return replace(desired, mps_by_device=mps_by_device(on, entry.mps))


def _together(
    mps: MpsEntry, gpus: Sequence[Gpu], chosen: Mapping[str, DesiredGpu], problems: list[Problem]
) -> dict[str, DesiredGpu]:
    """What is desired of the GPUs that no later entry names, with one daemon for them all. Limits
    that depend on a GPU's memory are those of the smallest.
    """
    path = f"{mps.path}.together"
    for gpu in gpus:
        mig = chosen[gpu.key].mig
        if (mig and not isinstance(mig, MigDisabled)) or (mig is None and gpu.in_mig_mode):
            problems.append(gpu.problem(Code.INVALID_VALUE, "togetherInMigMode", path=path))
    if not 2 <= len(gpus) <= MAX_DEVICES:
        problems.append(
            Problem.of(Code.INVALID_VALUE, "together", path=path, found=len(gpus), most=MAX_DEVICES)
        )
    daemons = [(gpu.memory, daemon) for gpu in gpus if (daemon := chosen[gpu.key].mps)]
    if problems or not daemons:
        return {}
    _, least = min(daemons, key=lambda one: one[0])
    daemon = replace(least, devices=tuple(sorted(gpu.key for gpu in gpus)))
    goals = {gpu.key: chosen[gpu.key] for gpu in gpus}
    return {key: replace(goal, mps=daemon) for key, goal in goals.items() if goal.mps}


def _time_slice_of(on: OnGpu, entry: PlanEntry) -> TimeSlice | None:
    """The interval; there is one for each GPU, so the parts of a GPU have none of their own."""
    if entry.time_slice is None:
        return None
    path = f"{entry.path}.timeSlice"
    if entry.mps is not None:
        on.refuse(Code.INVALID_VALUE, "sharedTwice", path)
    elif isinstance(entry.mig, MigLayout | MigEnabled):
        on.refuse(Code.INVALID_VALUE, "timeSliceBesideMig", path)
    elif entry.mig is None and on.gpu.in_mig_mode:
        on.refuse(Code.INVALID_VALUE, "timeSliceInMigMode", path)
    else:
        return TimeSlice(entry.time_slice)
    return None


def _desired_mig(on: OnGpu, entry: PlanEntry) -> DesiredMig | None:
    match entry.mig:
        case None:
            return None
        case MigDisabled() as disabled:
            return disabled
        case MigEnabled() as enabled:
            if on.gpu.mig is None:
                on.problems.append(not_mig_capable(on.gpu, enabled.path))
            return enabled
        case MigLayout(instances=instances, path=path):
            if on.gpu.mig is None:
                on.problems.append(not_mig_capable(on.gpu, path))
                return None
            if not any(profile.placements for profile in on.gpu.profiles):
                on.problems.append(unlisted(on.gpu, path))
                return None
            wanted = [w for i in instances for w in _wanted(on, i, i.mps or entry.mps)]
            return Layout(tuple(wanted), path)
        case _:
            assert_never(entry.mig)


def _wanted(on: OnGpu, entry: InstanceEntry, mps: MpsEntry | None) -> list[WantedInstance]:
    name = ProfileName.parse(entry.profile)
    found = find(name, on.gpu.profiles)
    if len(found) != 1:
        _refuse_profile(on, entry, found)
        return []
    [profile] = found
    # `find` compares whole GPU instances, so a full-size request takes the card's own size.
    slices = profile.slices if name.compute == name.slices else name.compute
    if not _is_offered(on, entry, profile, slices):
        return []
    device = device_name(profile.name, profile.slices, slices)
    wanted = None
    if mps is not None:
        wanted = wanted_mps(on, mps, memory=profile.memory, device=device, slices=slices)
    written = "" if name.gpu_instance == ProfileName.parse(profile.name) else str(name.gpu_instance)
    return [
        WantedInstance(profile.name, slices, entry.start, entry.path, wanted, written)
    ] * entry.count


def _refuse_profile(on: OnGpu, entry: InstanceEntry, found: Sequence[GpuInstanceProfile]) -> None:
    if found:
        meant = " or ".join(p.name for p in found)
        on.refuse(Code.UNKNOWN_PROFILE, "several", entry.path, profile=entry.profile, meant=meant)
        return
    names = [p.name for p in on.gpu.profiles]
    near = nearest_profile(entry.profile, names)
    on.refuse(
        Code.UNKNOWN_PROFILE,
        "none",
        entry.path,
        profile=entry.profile,
        hint=f"did you mean {near}? " if near else "",
        offered=", ".join(names),
    )


def _is_offered(on: OnGpu, entry: InstanceEntry, profile: GpuInstanceProfile, slices: int) -> bool:
    """Whether the card can divide and place the profile so; notes why not."""
    starts = sorted(p.start for p in profile.placements)
    sizes = sizes_offered(profile)
    name, path = profile.name, entry.path
    if not starts:
        on.refuse(Code.UNSUPPORTED, "noPlacements", path, profile=name)
    elif slices not in sizes:
        parts = ", ".join(device_name(name, profile.slices, size) for size in sizes)
        on.refuse(
            Code.UNKNOWN_PROFILE, "noSuchPart", path, profile=name, slices=slices, parts=parts
        )
    elif entry.start is not None and entry.start not in starts:
        can = ", ".join(map(str, starts))
        on.refuse(Code.DOES_NOT_FIT, "start", path, profile=name, start=entry.start, starts=can)
    else:
        return True
    return False


# --- which GPUs -------------------------------------------------------------------------------


def select(entry: PlanEntry, observed: ObservedNode, problems: list[Problem]) -> list[Gpu]:
    """The GPUs that an entry names, in index order; faults are added to `problems`."""
    if entry.devices is not None:
        gpus = _named(entry.devices, observed, problems)
    else:  # for MIG: all GPUs that have it, as far as that is known
        mig = isinstance(entry.mig, MigEnabled | MigLayout)
        gpus = [g for g in observed.gpus if not mig or g.mig or not g.answers]
    return [gpu for gpu in gpus if gpu in observed.gone or _passes(entry, gpu)]


def _passes(entry: PlanEntry, gpu: Gpu) -> bool:
    model = entry.model
    if model is not None and not fnmatch.fnmatchcase(gpu.name.casefold(), model.casefold()):
        return False
    return not entry.pci_filters or any(
        f.device == gpu.pci_device_id and f.subsystem in (None, gpu.pci_subsystem_id)
        for f in entry.pci_filters
    )


def _named(
    selectors: Sequence[DeviceSelector], observed: ObservedNode, problems: list[Problem]
) -> list[Gpu]:
    found: list[Gpu] = []
    for selector in selectors:
        listed = (*observed.gpus, *observed.gone)
        gpu = next((g for g in listed if _means(selector, g)), None)
        if gpu is None:
            problems.append(_unknown_device(selector, observed))
        elif gpu in found:
            path, named = selector.path, selector.text
            problems.append(gpu.problem(Code.DUPLICATE_DEVICE, path=path, named=named))
        else:
            found.append(gpu)
    return sorted(found, key=lambda gpu: gpu.index)


def _means(selector: DeviceSelector, gpu: Gpu) -> bool:
    device = selector.device
    if isinstance(device, int):
        return gpu.index == device
    return device.casefold() in {gpu.uuid.casefold(), gpu.pci_bus_id.casefold()}


def _unknown_device(selector: DeviceSelector, observed: ObservedNode) -> Problem:
    device, gpus = selector.device, (*observed.gpus, *observed.gone)
    if isinstance(device, int):
        have = f"indices 0 to {len(gpus) - 1}" if len(gpus) > 1 else "index 0" if gpus else ""
    elif device.startswith("GPU-"):
        have = ", ".join(g.uuid for g in gpus)
    else:
        have = ", ".join(g.pci_bus_id for g in gpus)
    return Problem.of(
        Code.UNKNOWN_DEVICE,
        "noSuchGpu",
        path=selector.path,
        named=selector.text,
        gpus=have or "no GPU at all",
    )
