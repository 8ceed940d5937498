"""Whether a claim may have a device that it was allocated, and why not."""

from __future__ import annotations

import pytest

from nodeagent.claims.model import ClaimRefused, Result
from nodeagent.claims.offering.terms import Terms
from nodeagent.claims.offering.wanted import FixedInstance, Mode, Planned
from nodeagent.claims.reference import ClaimReference
from nodeagent.plan.desired import Layout, MigDisabled, MigEnabled
from nodeagent.plan.observed import Gpu
from nodeagent.plan.shares import TimeSlice
from nodeagent.structs import replace
from tests.claims.boards import mig_off
from tests.plan.cards import card

H100 = card("h100-80gb")
CLAIM = ClaimReference("team", "trainer")
LAYOUT = Planned(
    Layout((), "gpus[0].mig"),
    (FixedInstance("3g.40gb", 4), FixedInstance("1g.10gb", 0, "the plan divides it")),
    path="gpus[0]",
)
DISABLED = Planned(MigDisabled("gpus[0].mig"), path="gpus[0]")
ENABLED = Planned(MigEnabled("gpus[0].mig"), path="gpus[0]")


def result(device: str, **changes: object) -> Result:
    """The device, allocated."""
    return Result("gpu", "node/gpu-1", device, **changes)  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize(
    ("terms", "device", "fixed"),
    [
        (Terms(), "mig-1g-10gb-3", False),
        (Terms(), "gpu", False),
        (Terms(planned=LAYOUT), "mig-3g-40gb-4", True),
        (Terms(planned=LAYOUT), "mig-1g-10gb-2", False),
        (Terms(planned=ENABLED), "mig-1g-10gb-2", False),
        (Terms(planned=DISABLED), "gpu", True),
        (Terms(Mode.STATIC, LAYOUT), "mig-3g-40gb-4", True),
        (Terms(Mode.STATIC), "gpu", True),
    ],
)
def test_devices_that_a_claim_may_have(terms: Terms, device: str, *, fixed: bool) -> None:
    """What the plan has, and everything in mode static, is only used."""
    gpu = mig_off(H100) if device == "gpu" else H100
    assert terms.admit(result(device), gpu, CLAIM) is fixed


@pytest.mark.parametrize(
    ("terms", "gpu", "device", "why"),
    [
        (Terms(closed="NVIDIA's driver is here"), H100, "mig-1g-10gb-2", "NVIDIA's driver is here"),
        (Terms(), mig_off(card("a100-40gb")), "mig-1g-5gb-0", "needs a GPU reset"),
        (Terms(), card("a100-40gb"), "gpu", "is in MIG mode"),
        (Terms(planned=replace(LAYOUT, room=False)), H100, "mig-1g-10gb-2", "dra: false"),
        (Terms(planned=replace(ENABLED, room=False)), H100, "mig-1g-10gb-2", "dra: false"),
        (Terms(planned=replace(LAYOUT, is_there=False)), H100, "mig-1g-10gb-2", "not there yet"),
        (Terms(planned=LAYOUT), H100, "mig-4g-40gb-0", "no room for it beside"),
        (Terms(planned=LAYOUT), H100, "mig-1g-10gb-0", "the plan divides it"),
        (Terms(planned=LAYOUT), H100, "gpu", "gpus[0] of the plan has MIG enabled"),
        (Terms(planned=DISABLED), H100, "mig-1g-10gb-0", "gpus[0] of the plan has MIG disabled"),
        (Terms(planned=replace(DISABLED, mps=True)), H100, "gpu", "shares the GPU by MPS"),
        (Terms(planned=Planned(None, path="gpus[0]")), H100, "mig-1g-10gb-0", "leaves MIG on"),
        (Terms(Mode.STATIC), H100, "mig-1g-10gb-0", "dra.mode static nothing is made"),
        (Terms(Mode.STATIC, LAYOUT), H100, "mig-1g-10gb-2", "dra.mode static nothing is made"),
    ],
)
def test_devices_that_are_not_offered_any_more(
    terms: Terms, gpu: Gpu, device: str, why: str
) -> None:
    """The claim is refused, by name and with the reason; an administrator may look at the GPU."""
    with pytest.raises(ClaimRefused) as refused:
        terms.admit(result(device), gpu, CLAIM)
    assert str(CLAIM) in refused.value.message
    assert device in refused.value.message
    assert why in refused.value.message
    assert refused.value.remedy == (
        "have its pods scheduled again: `kubectl delete pod -n team $(kubectl get resourceclaim "
        "-n team trainer -o jsonpath='{.status.reservedFor[*].name}')`"
    )
    assert not terms.admit(result("gpu", admin_access=True), gpu, CLAIM)


def test_the_plan_says_how_its_devices_are_shared() -> None:
    """A configuration of the claim's for one is refused."""
    shared = result("gpu", configuration=TimeSlice.LONG)
    with pytest.raises(ClaimRefused, match="which the plan does") as refused:
        Terms(planned=DISABLED).admit(shared, mig_off(H100), CLAIM)
    assert "`kubectl get resourceclaim -n team trainer -o yaml`" in refused.value.remedy
    assert not Terms().admit(shared, mig_off(H100), CLAIM)
