"""Which devices a GPU offers, by mode, plan and card."""

from collections.abc import Collection
from dataclasses import dataclass

import pytest

from nodeagent.claims.names import WHOLE_GPU, places
from nodeagent.claims.offering.devices import GpuFacts, OfferedDevice
from nodeagent.claims.offering.gpu_rules import (
    FixedInstance,
    GpuRules,
    Mode,
    Planned,
    offered_names,
)
from nodeagent.plan.desired import DesiredGpu, Layout, MigDisabled, MigEnabled
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Problem
from nodeagent.simulation.boards import load_board
from nodeagent.structs import replace
from tests.claims.boards import KINDS, MIG_BOARDS, legal_sets, mig_off
from tests.claims.samples import with_goal
from tests.plan.cards import card
from tests.plan.daemons import A

DISABLED = Planned(DesiredGpu(MigDisabled("gpus[0].mig"), ""))
ENABLED = Planned(DesiredGpu(MigEnabled("gpus[0].mig"), ""))
LAYOUT = DesiredGpu(Layout((), "gpus[0].mig"), "")


def planned(*fixed: tuple[str, int], room: bool = True) -> Planned:
    return Planned(replace(LAYOUT, dra=room), tuple(FixedInstance(*place) for place in fixed))


@dataclass(frozen=True)
class Found:
    devices: dict[str, OfferedDevice]
    reason: Problem | None


def wanted(
    gpu: Gpu, mode: Mode, plan: Planned | None = None, uncounted: Collection[str] = ()
) -> Found:
    """Of a node whose driver has a version; claims hold the `uncounted` ones."""
    held = {name: OfferedDevice(name, {}, {}) for name in uncounted}
    found = offered_names(gpu, GpuRules(mode, plan), held)
    facts = GpuFacts("580.65.06", "13.0")
    return Found({name: found.device(gpu, name, facts) for name in found.names}, found.reason)


def names(
    gpu: Gpu, mode: Mode, plan: Planned | None = None, uncounted: Collection[str] = ()
) -> set[str]:
    return set(wanted(gpu, mode, plan, uncounted).devices)


@pytest.mark.parametrize("board", MIG_BOARDS)
def test_nobody_planned_it(board: str) -> None:
    """A GPU that no plan names is for claims: both as a whole and in parts, or, where a change of
    mode needs a reset, only as it is now.
    """
    gpu = card(board)
    parts = set(places(gpu))
    ampere = load_board(board).mode_change_needs_reset
    assert names(gpu, Mode.DYNAMIC) == (parts if ampere else parts | {WHOLE_GPU})
    assert names(mig_off(gpu), Mode.DYNAMIC) == ({WHOLE_GPU} if ampere else parts | {WHOLE_GPU})
    assert names(gpu, Mode.STATIC) == set()
    assert names(mig_off(gpu), Mode.STATIC) == {WHOLE_GPU}
    assert names(gpu, Mode.OFF) == set()
    reason = wanted(mig_off(gpu), Mode.DYNAMIC).reason
    assert (reason is not None) == ampere
    if reason:
        assert (
            f"{gpu.title} is offered as a whole and not in MIG devices, because" in reason.message
        )
        assert "write `mig: enabled` for it in the plan, and end what uses" in reason.remedy


@pytest.mark.parametrize("board", KINDS)
def test_the_plan_fixes_the_mode(board: str) -> None:
    """With MIG disabled the GPU is one device, with MIG enabled it is the parts alone."""
    gpu = card(board)
    parts = set(places(gpu))
    for mode in (Mode.STATIC, Mode.DYNAMIC):
        for now in (gpu, mig_off(gpu)):
            assert names(now, mode, DISABLED) == {WHOLE_GPU}
    assert names(gpu, Mode.DYNAMIC, ENABLED) == parts
    assert names(gpu, Mode.DYNAMIC, with_goal(ENABLED, dra=False)) == set()
    assert names(mig_off(gpu), Mode.DYNAMIC, with_goal(DISABLED, mps=A)) == set()
    assert names(gpu, Mode.STATIC, ENABLED) == set()
    waiting = wanted(mig_off(gpu), Mode.DYNAMIC, ENABLED)
    if gpu.mode_change_needs_reset:
        assert not waiting.devices
        assert waiting.reason is not None
        assert waiting.reason.message == (
            f"MIG mode of {gpu.title} is off, and switching it on needs a GPU reset"
        )
        assert f"nvidia-smi --gpu-reset -i {gpu.pci_bus_id}" in waiting.reason.remedy
        assert waiting.reason.gpu == gpu.uuid
    else:
        assert set(waiting.devices) == parts


@pytest.mark.parametrize("board", KINDS)
def test_beside_a_planned_layout(board: str) -> None:
    """Fixed devices, and every device that can lie beside them; the fixed alone where the room is
    not for claims or nothing is made.
    """
    gpu = card(board)
    for fixed in sorted(legal_sets(board), key=sorted)[5::97]:
        plan = planned(
            *((places(gpu)[n].profile.name, places(gpu)[n].placement.start) for n in fixed)
        )
        beside = {n for legal in legal_sets(board) if fixed <= legal for n in legal} | fixed
        assert names(gpu, Mode.DYNAMIC, plan) == beside
        assert names(gpu, Mode.DYNAMIC, with_goal(plan, dra=False)) == fixed
        assert names(gpu, Mode.DYNAMIC, replace(plan, is_there=False)) == fixed
        assert names(gpu, Mode.STATIC, plan) == fixed
        assert names(mig_off(gpu), Mode.STATIC, plan) == fixed  # after a reboot


def test_instances_that_are_kept_back() -> None:
    """A fixed instance of several devices, say, keeps its place and is no device itself."""
    gpu = card("h100-80gb")
    plan = Planned(
        LAYOUT, (FixedInstance("3g.40gb", 4, "it is divided"), FixedInstance("1g.10gb", 0))
    )
    [static] = wanted(gpu, Mode.STATIC, plan).devices.values()
    assert (static.name, dict(static.consumes)) == ("mig-1g-10gb-0", {})
    found = names(gpu, Mode.DYNAMIC, plan)
    assert {n for n in found if places(gpu)[n].placement.mask & 0b11110001} == {"mig-1g-10gb-0"}
    assert {"mig-1g-10gb-1", "mig-1g-10gb-me-3", "mig-2g-20gb-2"} <= found


def test_not_made_where_counters_are_not_exact() -> None:
    """Then the plan's devices are offered as in mode static, with the reason."""
    gpu = card("rtx-pro-6000")
    profiles = tuple(replace(p, max_count=1) if "+gfx" in p.name else p for p in gpu.profiles)
    gpu = replace(gpu, profiles=profiles)
    found = wanted(gpu, Mode.DYNAMIC, planned(("1g.24gb", 9)))
    assert set(found.devices) == {"mig-1g-24gb-9"}
    assert not found.devices["mig-1g-24gb-9"].consumes
    assert found.reason is not None
    assert found.reason.message.startswith(f"nothing is created on {gpu.title}: its counters allow")
    assert found.reason.remedy.startswith("divide this GPU by a plan")
    assert names(mig_off(gpu), Mode.DYNAMIC) == {WHOLE_GPU}
    assert names(gpu, Mode.DYNAMIC) == set()


def test_beside_devices_that_no_counter_counts() -> None:
    """What a claim holds without taking from the counters excludes what it excludes on the card."""
    gpu = card("h100-80gb")
    found = names(gpu, Mode.DYNAMIC, None, {"mig-1g-10gb-me-0"})
    assert found == {
        n
        for n, place in places(gpu).items()
        if not place.placement.mask & 1 and "+me" not in place.profile.name
    }
    assert names(gpu, Mode.DYNAMIC, None, {WHOLE_GPU}) == {WHOLE_GPU}
