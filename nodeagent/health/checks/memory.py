"""ECC, remapped rows and banks, retired pages, repairs: the card's memory."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.health.checks.observation import GpuCheck, Look, Sign, known
from nodeagent.health.findings import Severity


def ecc(look: Look) -> Iterator[Sign]:
    """Uncorrected errors belong to the GPU instances that count them, the rest to the GPU.

    What is left in MIG mode degrades the GPU only: it lies somewhere, and not everywhere. A GPU for
    which the driver asks no recovery has contained them: it is degraded until a reset.
    """
    read = look.gpu.ecc
    severity = Severity.DEGRADED if look.no_recovery else None
    of_instances = 0
    for instance in look.gpu.instances or ():
        count = instance.uncorrected
        of_instances += count or 0
        yield Sign(
            "eccUncorrected",
            None if count is None else count > 0,
            f"{count} uncorrected errors in the GPU instance since the last reset",
            instance=instance.instance,
            severity=severity,
        )
    total, where = read.volatile.uncorrected, ""
    if look.gpu.mig:
        # The count of an instance goes with it, and its errors stay in the GPU's.
        severity, where = Severity.DEGRADED, ", some of them in instances that are gone"
        if look.gpu.instances is None:
            total = None  # whose errors they are is not known this time
    yield Sign(
        "eccUncorrected",
        None if total is None else total > of_instances,
        f"{total} uncorrected errors since the last reset{where}",
        severity=severity,
    )
    differs = None
    if read.mode is not None and read.pending_mode is not None:
        differs = read.mode != read.pending_mode
    yield Sign(
        "eccModePending",
        differs,
        f"ECC is {_on(read.mode)} and will be {_on(read.pending_mode)} after a reset",
    )
    yield known(
        read.sram_threshold_exceeded, "sramThreshold", "the driver's SRAM error threshold is passed"
    )


def _on(mode: bool | None) -> str:
    return "on" if mode else "off"


def rows(look: Look) -> Iterator[Sign]:
    """Remapped rows, and how many spare ones are left."""
    remapped, histogram = look.gpu.memory.rows, look.gpu.memory.histogram
    if remapped is not None:
        counts = f"{remapped.uncorrectable} for uncorrectable, {remapped.correctable} for others"
        yield Sign("rowRemapPending", remapped.pending, f"remapping pending; so far {counts}")
        yield Sign("rowRemapFailed", remapped.failed, f"remapping failed; so far {counts}")
        limit = look.limits.remapped_uncorrectable
        many = remapped.uncorrectable >= limit
        yield Sign("rowRemapMany", many, f"remapped rows: {counts} (limit {limit})")
    if histogram is not None:
        evidence = f"{histogram.none} memory banks have no spare row left, {histogram.low} few"
        yield Sign("rowRemapSpent", histogram.none > 0, evidence)


def repairs(look: Look) -> Iterator[Sign]:
    """What waits for a reset, or cannot be repaired any more."""
    memory = look.gpu.memory
    yield known(memory.bank_remap_pending, "bankRemapPending", "bank remapping is pending")
    yield known(memory.unrepairable, "memoryUnrepairable", "the driver says so")
    flags = {"channel": memory.channel_repair, "TPC": memory.tpc_repair}
    told = [flag for flag in flags.values() if flag is not None]
    what = " and ".join(name for name, flag in flags.items() if flag)
    yield Sign("repairPending", any(told) if told else None, f"{what} repair pending")


def pages(look: Look) -> Iterator[Sign]:
    """Retired pages, on cards before Ampere."""
    retired = look.gpu.memory.pages
    if retired is None:
        return
    total = retired.single_bit + retired.double_bit
    hard, soft = look.limits.retired_pages, look.limits.retired_double_bit
    evidence = f"{total} pages retired, {retired.double_bit} of them by double-bit errors"
    yield Sign("retiredPagesMany", total >= hard, f"{evidence} (limit {hard})")
    yield Sign("retiredPagesDoubleBit", retired.double_bit >= soft, f"{evidence} (limit {soft})")
    yield Sign("retiredPagesPending", retired.pending, "page retirement pending")


CHECKS: tuple[GpuCheck, ...] = (ecc, rows, repairs, pages)
