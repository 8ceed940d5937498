"""Which GPUs an entry of a document means: by index, UUID, PCI address, model or PCI ids."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from nodeagent.plan.desired import DeviceSelector, MigEnabled, MigLayout, PlanEntry
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.problems import Code, Problem


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
