"""ECC, remapped rows and banks, retired pages, repairs: the card's memory."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.health import limits
from nodeagent.health.checks.observation import GpuCheck, GpuView, Observation
from nodeagent.health.findings import Severity


def ecc(view: GpuView) -> Iterator[Observation]:
    """Uncorrected errors belong to the GPU instances that count them, the rest to the GPU.

    What is left in MIG mode degrades the GPU only: it lies somewhere, and not everywhere. A GPU for
    which the driver asks no recovery has contained them: it is degraded until a reset.
    """
    read = view.gpu
    severity = Severity.DEGRADED if view.no_recovery else None
    of_instances = 0
    for instance in view.gpu.instances or ():
        count = instance.uncorrected
        of_instances += count or 0
        yield Observation(
            "eccUncorrected",
            None if count is None else count > 0,
            f"{count} uncorrected errors in the GPU instance since the last reset",
            instance=instance.instance,
            severity=severity,
        )
    total, where = read.ecc_uncorrected, ""
    if view.gpu.mig:
        # The count of an instance goes with it, and its errors stay in the GPU's.
        severity, where = Severity.DEGRADED, ", some of them in instances that are gone"
        if view.gpu.instances is None:
            total = None  # whose errors they are is not known this time
    yield Observation(
        "eccUncorrected",
        None if total is None else total > of_instances,
        f"{total} uncorrected errors since the last reset{where}",
        severity=severity,
    )
    differs = None
    if read.ecc_mode is not None and read.ecc_pending_mode is not None:
        differs = read.ecc_mode != read.ecc_pending_mode
    yield Observation(
        "eccModePending",
        differs,
        f"ECC is {_on(read.ecc_mode)} and will be {_on(read.ecc_pending_mode)} after a reset",
    )
    yield Observation(
        "sramThreshold", read.sram_threshold_exceeded, "the driver's SRAM error threshold is passed"
    )


def _on(mode: bool | None) -> str:
    return "on" if mode else "off"


def rows(view: GpuView) -> Iterator[Observation]:
    """Remapped rows, and how many spare ones are left."""
    remapped, none_left = view.gpu.rows, view.gpu.banks_without_spare_row
    if remapped is not None:
        counts = f"{remapped.uncorrectable} for uncorrectable, {remapped.correctable} for others"
        yield Observation(
            "rowRemapPending", remapped.pending, f"remapping pending; so far {counts}"
        )
        yield Observation("rowRemapFailed", remapped.failed, f"remapping failed; so far {counts}")
        limit = limits.REMAPPED_UNCORRECTABLE
        many = remapped.uncorrectable >= limit
        yield Observation("rowRemapMany", many, f"remapped rows: {counts} (limit {limit})")
    if none_left is not None:
        few = view.gpu.banks_with_few_spare_rows
        evidence = f"{none_left} memory banks have no spare row left, {few} few"
        yield Observation("rowRemapSpent", none_left > 0, evidence)


def repairs(view: GpuView) -> Iterator[Observation]:
    """What waits for a reset, or cannot be repaired any more."""
    read = view.gpu
    yield Observation("bankRemapPending", read.bank_remap_pending, "bank remapping is pending")
    yield Observation("memoryUnrepairable", read.memory_unrepairable, "the driver says so")
    flags = {"channel": read.channel_repair_pending, "TPC": read.tpc_repair_pending}
    answers = [flag for flag in flags.values() if flag is not None]
    what = " and ".join(name for name, flag in flags.items() if flag)
    yield Observation("repairPending", any(answers) if answers else None, f"{what} repair pending")


def pages(view: GpuView) -> Iterator[Observation]:
    """Retired pages, on cards before Ampere."""
    retired = view.gpu.pages
    if retired is None:
        return
    total = retired.single_bit + retired.double_bit
    hard, soft = limits.RETIRED_PAGES, limits.RETIRED_DOUBLE_BIT
    evidence = f"{total} pages retired, {retired.double_bit} of them by double-bit errors"
    yield Observation("retiredPagesMany", total >= hard, f"{evidence} (limit {hard})")
    yield Observation(
        "retiredPagesDoubleBit", retired.double_bit >= soft, f"{evidence} (limit {soft})"
    )
    yield Observation("retiredPagesPending", retired.pending, "page retirement pending")


CHECKS: tuple[GpuCheck, ...] = (ecc, rows, repairs, pages)
