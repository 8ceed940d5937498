"""Modes that the agent owns, as they were read beside what the plan in force makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nodeagent.health.readings import ModeReading
from nodeagent.plan.plan import GpuPlan, Verdict
from nodeagent.plan.shares import ComputeMode

_COMPUTE = "compute mode"
_BY_NUMBER = {  # nvmlComputeMode_t
    0: ComputeMode.DEFAULT,
    1: ComputeMode.EXCLUSIVE_THREAD,
    2: ComputeMode.PROHIBITED,
    3: ComputeMode.EXCLUSIVE_PROCESS,
}


def owned_modes(
    plan: GpuPlan, *, mig: bool | None, numbers: Mapping[str, int]
) -> tuple[ModeReading, ...]:
    """Of one GPU: `mig` is whether MIG is on, `numbers` NVML's for other modes by name. A mode that
    the plan does not name is left out.
    """
    if plan.verdict not in (Verdict.IN_SYNC, Verdict.APPLICABLE):
        return ()
    return (*_mig(plan, mig), *_compute(plan, numbers.get(_COMPUTE)))


def _mig(plan: GpuPlan, found: bool | None) -> Iterator[ModeReading]:
    wanted = plan.after.mig
    if found is not None and wanted is not None and wanted.current == wanted.pending:
        yield ModeReading("MIG mode", _word(found), _word(wanted.current))


def _word(on: bool) -> str:
    return "on" if on else "off"


def _compute(plan: GpuPlan, number: int | None) -> Iterator[ModeReading]:
    """The agent's own as long as it has changed it."""
    gpu = plan.after
    divided = gpu.mig is not None and gpu.mig.current
    found = _BY_NUMBER.get(-1 if number is None else number)
    if found is None or divided or gpu.compute_mode is None or gpu.earlier_mode is None:
        return
    yield ModeReading(_COMPUTE, found.value, gpu.compute_mode.value)
