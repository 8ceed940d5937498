"""Modes that the agent owns: what it made of them, beside what they are."""

from __future__ import annotations

from nodeagent.health.readings import GpuReading, ModeReading
from nodeagent.plan.observed import MigMode
from nodeagent.plan.plan import GpuPlan, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import ComputeMode
from nodeagent.structs import replace
from nodeagent.telemetry.health_sources import owned_modes
from tests.plan.cards import card

ON, OFF = MigMode(current=True, pending=True), MigMode(current=False, pending=False)
EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS
H100 = replace(card("h100-80gb"), mig=OFF)


def _read(*, mig: bool | None = None, mode: ComputeMode | None = None) -> GpuReading:
    return GpuReading(H100.uuid, mig=mig, compute_mode=mode)


def test_mig_as_the_plan_has_it() -> None:
    """Also while a plan is still to be carried out; a pending mode is not wanted yet."""
    on = GpuPlan(H100, Verdict.APPLICABLE, (), replace(H100, mig=ON))
    assert owned_modes(on, _read(mig=False)) == (ModeReading("MIG mode", "off", "on"),)
    pending = replace(H100, mig=MigMode(current=False, pending=True))
    waits = GpuPlan(H100, Verdict.APPLICABLE, (), pending)
    assert owned_modes(waits, _read(mig=False)) == ()
    assert owned_modes(on, _read()) == ()


def test_the_compute_mode_only_where_the_agent_set_it() -> None:
    """What another program set is not."""
    mine = replace(
        H100,
        mig=None,
        compute_mode=ComputeMode.EXCLUSIVE_PROCESS,
        earlier_mode=ComputeMode.DEFAULT,
    )
    found = owned_modes(GpuPlan.in_sync(mine), _read(mode=ComputeMode.DEFAULT))
    assert found == (ModeReading("compute mode", "default", "exclusiveProcess"),)
    theirs = replace(mine, earlier_mode=None)
    assert owned_modes(GpuPlan.in_sync(theirs), _read(mode=EXCLUSIVE)) == ()
    divided = replace(mine, mig=ON)
    found = owned_modes(GpuPlan.in_sync(divided), _read(mig=True, mode=EXCLUSIVE))
    assert [mode.name for mode in found] == ["MIG mode"]


def test_a_plan_that_is_refused_wants_nothing() -> None:
    """What would be so is not known."""
    refused = GpuPlan.refused(H100, Verdict.BLOCKED, Problem(code=Code.IN_USE, message="in use"))
    assert owned_modes(refused, _read(mig=True, mode=EXCLUSIVE)) == ()
