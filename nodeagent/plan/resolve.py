"""A document meets the node: selectors become GPUs, profile names become the cards' own.

The document is checked as a whole. If anything in it is wrong for this node, it is refused
whole, with every fault that was found.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from nodeagent.plan import refusals
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
from nodeagent.plan.names import ProfileName, device_name, find, nearest_profile
from nodeagent.plan.observed import Access, Gpu, GpuInstanceProfile, ObservedNode
from nodeagent.plan.plan import Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.resolve_mps import mps_by_device, time_slice_of, wanted_mps
from nodeagent.plan.search import best_layout
from nodeagent.plan.shares import Host

_ANY_HOST = Host()

_INVALID = frozenset(
    {
        Code.INVALID_VALUE,
        Code.UNKNOWN_DEVICE,
        Code.DUPLICATE_DEVICE,
        Code.UNKNOWN_PROFILE,
    }
)


@dataclass(frozen=True, slots=True)
class Rejection:
    """The document is refused. INVALID: it names what the node does not have; UNSATISFIABLE:
    what it asks for can never be on these cards.
    """

    problems: tuple[Problem, ...]

    @property
    def verdict(self) -> Verdict:
        invalid = any(problem.code in _INVALID for problem in self.problems)
        return Verdict.INVALID if invalid else Verdict.UNSATISFIABLE


def resolve(
    document: PlanDocument, observed: ObservedNode, host: Host = _ANY_HOST
) -> DesiredNode | Rejection:
    """What the document asks of each GPU; for a GPU that several entries name, the last wins."""
    problems: list[Problem] = []
    chosen: dict[str, DesiredGpu] = {}
    matched = False
    for entry in document.entries:
        gpus = select(entry, observed, problems)
        matched = matched or bool(gpus)
        for gpu in gpus:
            wanted = _desired(entry, gpu, host, problems)
            if wanted is not None:
                chosen[gpu.key] = wanted
    if document.entries and not matched and not problems:
        problems.append(_matches_nothing(document, observed))
    for gpu in observed.gpus:
        if not problems and gpu.key in chosen:
            problems += _impossible(chosen[gpu.key], gpu)
    if problems:
        return Rejection(tuple(dict.fromkeys(problems)))
    return DesiredNode(gpus=chosen, digest=document.digest)


def _matches_nothing(document: PlanDocument, observed: ObservedNode) -> Problem:
    names = ", ".join(dict.fromkeys(gpu.name for gpu in observed.gpus)) or "no GPU at all"
    if any(entry.devices is None and entry.mig is not None for entry in document.entries):
        code, what = Code.NOT_MIG_CAPABLE, "no MIG-capable GPU of this node"
    else:
        code, what = Code.UNKNOWN_DEVICE, "no GPU of this node"
    return Problem(
        code,
        f"the document matches {what}",
        f"the node has {names}; look at devices, model or device-filter",
        path=document.entries[0].devices_path,
    )


# --- what each should be ----------------------------------------------------------------------


def _desired(entry: PlanEntry, gpu: Gpu, host: Host, problems: list[Problem]) -> DesiredGpu | None:
    if gpu.access is not Access.OK:  # the planner reports it; nothing can be checked
        return DesiredGpu(mig=None, path=entry.path, when_in_use=entry.when_in_use)
    faults = len(problems)
    desired = DesiredGpu(
        mig=_desired_mig(entry, gpu, host, problems),
        path=entry.path,
        when_in_use=entry.when_in_use,
        time_slice=time_slice_of(entry, gpu, problems),
    )
    if entry.mps is not None and not isinstance(entry.mig, MigLayout):
        desired = _with_mps(desired, entry.mps, gpu, host, problems)
    return None if len(problems) > faults else desired


def _with_mps(
    desired: DesiredGpu, mps: MpsEntry, gpu: Gpu, host: Host, problems: list[Problem]
) -> DesiredGpu:
    """For the GPU, or where its instances are left as they are, for each of these."""
    in_mig_mode = gpu.mig is not None and gpu.mig.current
    if isinstance(desired.mig, MigDisabled) or (desired.mig is None and not in_mig_mode):
        return replace(desired, mps=wanted_mps(mps, gpu, host, problems, memory=gpu.memory))
    return replace(desired, mps_by_device=mps_by_device(mps, gpu, host, problems))


def _desired_mig(
    entry: PlanEntry, gpu: Gpu, host: Host, problems: list[Problem]
) -> DesiredMig | None:
    match entry.mig:
        case None:
            return None
        case MigDisabled() as disabled:
            return disabled
        case MigEnabled() as enabled:
            if gpu.mig is None:
                problems.append(refusals.not_mig_capable(gpu, enabled.path))
            return enabled
        case MigLayout(instances=instances, path=path):
            if gpu.mig is None:
                problems.append(refusals.not_mig_capable(gpu, path))
                return None
            if not any(profile.placements for profile in gpu.profiles):
                problems.append(_profiles_unknown(gpu, path))
                return None
            wanted = [w for i in instances for w in _wanted(i, entry.mps, gpu, host, problems)]
            return Layout(tuple(wanted), path)
        case _:
            assert_never(entry.mig)


def _profiles_unknown(gpu: Gpu, path: str) -> Problem:
    return Problem(
        Code.UNSUPPORTED,
        f"the driver does not report the profiles of GPU {gpu.index} and where they can lie"
        + (" while its MIG mode is off" if gpu.mig and not gpu.mig.current else ""),
        "apply a plan with mig: enabled for it first"
        if gpu.mig and not gpu.mig.current
        else "a newer driver is needed, or more privilege (run as root)",
        gpu=gpu.uuid,
        path=path,
    )


def _wanted(
    entry: InstanceEntry,
    mps_for_all: MpsEntry | None,
    gpu: Gpu,
    host: Host,
    problems: list[Problem],
) -> list[WantedInstance]:
    name = ProfileName.parse(entry.profile)
    found = find(name, gpu.profiles)
    if len(found) != 1:
        problems.append(_unknown_profile(entry, gpu, found))
        return []
    profile = found[0]
    # `find` compares whole GPU instances, so a full-size request takes the card's own size.
    slices = profile.slices if name.compute == name.slices else name.compute
    problem = (
        _no_place(entry, profile, gpu)
        or _bad_size(entry, slices, profile, gpu)
        or _bad_start(entry, profile, gpu)
    )
    if problem is not None:
        problems.append(problem)
        return []
    mps_entry = entry.mps or mps_for_all
    mps = None
    if mps_entry is not None:
        mps = wanted_mps(
            mps_entry,
            gpu,
            host,
            problems,
            device=device_name(profile.name, profile.slices, slices),
            slices=slices,
            memory=profile.memory,
        )
    wanted = WantedInstance(profile.name, slices, entry.start, entry.path, mps)
    return [wanted] * entry.count


def _unknown_profile(
    entry: InstanceEntry, gpu: Gpu, found: tuple[GpuInstanceProfile, ...]
) -> Problem:
    names = [p.name for p in gpu.profiles]
    if found:
        message = f"{entry.profile} may mean {' or '.join(p.name for p in found)}"
        remedy = "write the one that is meant"
    else:
        message = f"{gpu.title} has no profile {entry.profile}"
        near = nearest_profile(entry.profile, names)
        hint = f"did you mean {near}? " if near else ""
        remedy = f"{hint}it offers {', '.join(names)}"
    return Problem(Code.UNKNOWN_PROFILE, message, remedy, gpu=gpu.uuid, path=entry.path)


def _no_place(entry: InstanceEntry, profile: GpuInstanceProfile, gpu: Gpu) -> Problem | None:
    if profile.placements:
        return None
    return Problem(
        Code.UNSUPPORTED,
        f"the driver does not report where a {profile.name} can lie on GPU {gpu.index}",
        "take another profile, or a newer driver",
        gpu=gpu.uuid,
        path=entry.path,
    )


def _bad_size(
    entry: InstanceEntry, slices: int, profile: GpuInstanceProfile, gpu: Gpu
) -> Problem | None:
    sizes = sizes_offered(profile)
    if slices in sizes:
        return None
    parts = [device_name(profile.name, profile.slices, c) for c in sizes]
    return Problem(
        Code.UNKNOWN_PROFILE,
        f"a {profile.name} cannot be divided into parts of {slices} compute slices",
        f"it can be {', '.join(parts)}",
        gpu=gpu.uuid,
        path=entry.path,
    )


def _bad_start(entry: InstanceEntry, profile: GpuInstanceProfile, gpu: Gpu) -> Problem | None:
    starts = sorted(p.start for p in profile.placements)
    if entry.start is None or entry.start in starts:
        return None
    return Problem(
        Code.DOES_NOT_FIT,
        f"a {profile.name} cannot start at memory slice {entry.start} of GPU {gpu.index}",
        f"it can start at {', '.join(map(str, starts))}",
        gpu=gpu.uuid,
        path=entry.path,
    )


def _impossible(desired: DesiredGpu, gpu: Gpu) -> list[Problem]:
    match desired.mig:
        case Layout(instances=wanted, path=path) if gpu.access is Access.OK:
            if best_layout(Card.of(gpu), wanted, ()) is None:
                return [refusals.does_not_fit(gpu, wanted, path)]
    return []


# --- which GPUs -------------------------------------------------------------------------------


def select(entry: PlanEntry, observed: ObservedNode, problems: list[Problem]) -> list[Gpu]:
    """The GPUs that an entry names, in index order; faults are added to `problems`."""
    if entry.devices is None:
        gpus = [gpu for gpu in observed.gpus if not _skipped_by_all(entry, gpu)]
    else:
        gpus = _named(entry.devices, observed, problems)
    return [gpu for gpu in gpus if _passes(entry, gpu)]


def _skipped_by_all(entry: PlanEntry, gpu: Gpu) -> bool:
    """`all` in an entry that wants MIG means all GPUs that have it, as far as that is known."""
    wants_mig = isinstance(entry.mig, MigEnabled | MigLayout)
    return wants_mig and gpu.mig is None and gpu.access is Access.OK


def _passes(entry: PlanEntry, gpu: Gpu) -> bool:
    if entry.model is not None and not fnmatch.fnmatchcase(
        gpu.name.casefold(), entry.model.casefold()
    ):
        return False
    if not entry.pci_filters:
        return True
    return any(
        f.device == gpu.pci_device_id and f.subsystem in (None, gpu.pci_subsystem_id)
        for f in entry.pci_filters
    )


def _named(
    selectors: Sequence[DeviceSelector], observed: ObservedNode, problems: list[Problem]
) -> list[Gpu]:
    found: list[Gpu] = []
    for selector in selectors:
        gpu = next((g for g in observed.gpus if _means(selector, g)), None)
        if gpu is None:
            problems.append(_unknown_device(selector, observed))
        elif gpu in found:
            problems.append(
                Problem(
                    Code.DUPLICATE_DEVICE,
                    f"{selector.text} is GPU {gpu.index}, which this entry names already",
                    "name each GPU once",
                    gpu=gpu.uuid,
                    path=selector.path,
                )
            )
        else:
            found.append(gpu)
    return sorted(found, key=lambda gpu: gpu.index)


def _means(selector: DeviceSelector, gpu: Gpu) -> bool:
    if selector.index is not None:
        return gpu.index == selector.index
    if selector.uuid is not None:
        return gpu.uuid.casefold() == selector.uuid.casefold()
    return (
        selector.pci_bus_id is not None
        and bool(gpu.pci_bus_id)
        and _pci_address(selector.pci_bus_id) == _pci_address(gpu.pci_bus_id)
    )


def _pci_address(text: str) -> tuple[int, ...] | None:
    """Domain (0 when left out), bus, device, function (0 when left out)."""
    match = re.fullmatch(
        r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", text.casefold()
    )
    return tuple(int(part or "0", 16) for part in match.groups()) if match else None


def _unknown_device(selector: DeviceSelector, observed: ObservedNode) -> Problem:
    if selector.index is not None:
        count = len(observed.gpus)
        have = f"indices 0 to {count - 1}" if count > 1 else "index 0" if count else "no GPU at all"
    elif selector.uuid is not None:
        have = ", ".join(g.uuid for g in observed.gpus) or "no GPU at all"
    else:
        have = ", ".join(g.pci_bus_id for g in observed.gpus) or "no GPU at all"
    return Problem(
        Code.UNKNOWN_DEVICE,
        f"this node has no GPU {selector.text}",
        f"it has {have}",
        path=selector.path,
    )
