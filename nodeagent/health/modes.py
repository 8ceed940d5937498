"""Modes that the agent owns, as they were read beside what the plan in force makes of them."""

from __future__ import annotations

from nodeagent.health.readings import GpuReading, ModeReading
from nodeagent.plan.plan import GpuPlan, Verdict
from nodeagent.plan.shares import ComputeMode

_BY_NUMBER = {  # nvmlComputeMode_t
    0: ComputeMode.DEFAULT,
    1: ComputeMode.EXCLUSIVE_THREAD,
    2: ComputeMode.PROHIBITED,
    3: ComputeMode.EXCLUSIVE_PROCESS,
}


def owned_modes(plan: GpuPlan, read: GpuReading) -> tuple[ModeReading, ...]:
    """Of one GPU; a mode that the plan does not name is left out."""
    if plan.verdict not in (Verdict.IN_SYNC, Verdict.APPLICABLE):
        return ()
    gpu, found = plan.after, []
    mig = gpu.mig
    if read.mig is not None and mig is not None and mig.current == mig.pending:
        found.append(ModeReading("MIG mode", _word(read.mig), _word(mig.current)))
    mode = None if read.compute_mode is None else _BY_NUMBER.get(read.compute_mode)
    divided = mig is not None and mig.current
    # The compute mode is the agent's own as long as it has changed it.
    if mode and gpu.compute_mode and gpu.earlier_mode and not divided:
        found.append(ModeReading("compute mode", mode.value, gpu.compute_mode.value))
    return tuple(found)


def _word(on: bool) -> str:
    return "on" if on else "off"
