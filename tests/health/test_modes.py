"""Modes that the agent owns: what it made of them, beside what they are."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.health.modes import owned_modes
from nodeagent.health.readings import ModeReading
from nodeagent.plan.observed import MigMode
from nodeagent.plan.plan import GpuPlan, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import ComputeMode
from tests.plan.cards import card

ON, OFF = MigMode(current=True, pending=True), MigMode(current=False, pending=False)
EXCLUSIVE = {"compute mode": 3, "persistence mode": 0}
H100 = replace(card("h100-80gb"), mig=OFF)


def test_mig_as_the_plan_has_it() -> None:
    """Also while a plan is still to be carried out; a pending mode is not wanted yet."""
    on = GpuPlan(H100, Verdict.APPLICABLE, (), replace(H100, mig=ON))
    assert owned_modes(on, mig=False, numbers={}) == (ModeReading("MIG mode", "off", "on"),)
    pending = replace(H100, mig=MigMode(current=False, pending=True))
    waits = GpuPlan(H100, Verdict.APPLICABLE, (), pending)
    assert owned_modes(waits, mig=False, numbers={}) == ()
    assert owned_modes(on, mig=None, numbers={}) == ()


def test_the_compute_mode_only_where_the_agent_set_it() -> None:
    """Persistence and what somebody else set is nobody's."""
    mine = replace(
        H100,
        mig=None,
        compute_mode=ComputeMode.EXCLUSIVE_PROCESS,
        earlier_mode=ComputeMode.DEFAULT,
    )
    found = owned_modes(GpuPlan.in_sync(mine), mig=None, numbers={**EXCLUSIVE, "compute mode": 0})
    assert found == (ModeReading("compute mode", "default", "exclusiveProcess"),)
    theirs = replace(mine, earlier_mode=None)
    assert owned_modes(GpuPlan.in_sync(theirs), mig=None, numbers=EXCLUSIVE) == ()
    divided = replace(mine, mig=ON)
    found = owned_modes(GpuPlan.in_sync(divided), mig=True, numbers=EXCLUSIVE)
    assert [mode.name for mode in found] == ["MIG mode"]


def test_a_plan_that_is_refused_wants_nothing() -> None:
    """What would be so is not known."""
    refused = GpuPlan.refused(H100, Verdict.BLOCKED, Problem(Code.IN_USE, "in use"))
    assert owned_modes(refused, mig=True, numbers=EXCLUSIVE) == ()
