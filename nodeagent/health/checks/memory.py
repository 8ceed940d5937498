"""ECC, remapped rows and banks, retired pages, repairs: the card's memory."""

from collections.abc import Iterator

from nodeagent.health import limits
from nodeagent.health.checks.observation import GpuCheck, GpuView, Observation
from nodeagent.health.findings import Severity


def uncorrected_ecc(view: GpuView) -> Iterator[Observation]:
    """Uncorrected errors belong to the GPU instances that count them, the rest to the GPU.

    In MIG mode that rest only degrades the GPU, since it need not concern the instances there are.
    A GPU for which the driver asks no recovery has contained them: it is degraded until a reset.
    """
    gpu = view.gpu
    severity = Severity.DEGRADED if view.no_recovery else None
    of_instances = 0
    for instance in gpu.instances or ():
        count = instance.uncorrected
        of_instances += count or 0
        yield Observation(
            "eccUncorrected",
            None if count is None else count > 0,
            f"{count} uncorrected errors in the GPU instance since the last reset",
            instance=instance.instance,
            severity=severity,
        )
    total, where = gpu.ecc_uncorrected, ""
    if gpu.mig:
        # A destroyed instance's count is lost, while the GPU's count still has its errors.
        severity, where = Severity.DEGRADED, ", some of them in instances that are gone"
        if gpu.instances is None:
            total = None  # without the instances' counts it is not known what is left of it
    yield Observation(
        "eccUncorrected",
        None if total is None else total > of_instances,
        f"{total} uncorrected errors since the last reset{where}",
        severity=severity,
    )


def ecc_settings(view: GpuView) -> Iterator[Observation]:
    """An ECC mode that waits for a reset, and the driver's own limit for errors in SRAM."""
    gpu = view.gpu
    current, pending = gpu.ecc_mode, gpu.ecc_pending_mode
    yield Observation(
        "eccModePending",
        None if current is None or pending is None else current != pending,
        f"ECC is {_on(current)} and will be {_on(pending)} after a reset",
    )
    yield Observation(
        "sramThreshold", gpu.sram_threshold_exceeded, "the driver's SRAM error threshold is passed"
    )


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
    """Report what waits for a reset, or cannot be repaired any more."""
    gpu = view.gpu
    yield Observation("bankRemapPending", gpu.bank_remap_pending, "bank remapping is pending")
    yield Observation("memoryUnrepairable", gpu.memory_unrepairable, "the driver says so")
    flags = {"channel": gpu.channel_repair_pending, "TPC": gpu.tpc_repair_pending}
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


def _on(mode: bool | None) -> str:
    return "on" if mode else "off"


CHECKS: tuple[GpuCheck, ...] = (uncorrected_ecc, ecc_settings, rows, repairs, pages)
