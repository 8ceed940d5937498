"""Whether a claim may have a device that it was allocated, and why not."""

from __future__ import annotations

import pytest

from nodeagent.claims.model import ClaimReference, ClaimRefused, Result
from nodeagent.claims.offering.gpu_rules import FixedInstance, GpuRules, Mode, Planned
from nodeagent.claims.offering.refusals import admit
from nodeagent.plan.desired import Layout, MigDisabled, MigEnabled
from nodeagent.plan.observed import Gpu
from nodeagent.plan.shares import TimeSlice
from nodeagent.structs import replace
from tests.claims.boards import mig_off
from tests.plan.cards import card

H100, L40S = card("h100-80gb"), card("l40s")
SHARE = 8 << 30
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
    ("rules", "device", "fixed"),
    [
        (GpuRules(), "mig-1g-10gb-3", False),
        (GpuRules(), "gpu", False),
        (GpuRules(planned=LAYOUT), "mig-3g-40gb-4", True),
        (GpuRules(planned=LAYOUT), "mig-1g-10gb-2", False),
        (GpuRules(planned=ENABLED), "mig-1g-10gb-2", False),
        (GpuRules(planned=DISABLED), "gpu", True),
        (GpuRules(Mode.STATIC, LAYOUT), "mig-3g-40gb-4", True),
        (GpuRules(Mode.STATIC), "gpu", True),
        (GpuRules(planned=DISABLED, share=SHARE), "mps-8gi-8", False),
    ],
)
def test_devices_that_a_claim_may_have(rules: GpuRules, device: str, *, fixed: bool) -> None:
    """What the plan has, and everything in mode static, is only used."""
    gpu = H100 if device.startswith("mig-") else mig_off(H100)
    assert admit(rules, result(device), gpu, CLAIM) is fixed


@pytest.mark.parametrize(
    ("rules", "gpu", "device", "why"),
    [
        (
            GpuRules(closed="NVIDIA's driver is here"),
            H100,
            "mig-1g-10gb-2",
            "NVIDIA's driver is here",
        ),
        (GpuRules(), mig_off(card("a100-40gb")), "mig-1g-5gb-0", "needs a GPU reset"),
        (GpuRules(), card("a100-40gb"), "gpu", "is in MIG mode"),
        (GpuRules(planned=replace(LAYOUT, room=False)), H100, "mig-1g-10gb-2", "dra: false"),
        (GpuRules(planned=replace(ENABLED, room=False)), H100, "mig-1g-10gb-2", "dra: false"),
        (GpuRules(planned=replace(LAYOUT, is_there=False)), H100, "mig-1g-10gb-2", "not there yet"),
        (GpuRules(planned=LAYOUT), H100, "mig-4g-40gb-0", "no room for it beside"),
        (GpuRules(planned=LAYOUT), H100, "mig-1g-10gb-0", "the plan divides it"),
        (GpuRules(planned=LAYOUT), H100, "gpu", "gpus[0] of the plan has MIG enabled"),
        (GpuRules(planned=DISABLED), H100, "mig-1g-10gb-0", "gpus[0] of the plan has MIG disabled"),
        (GpuRules(planned=replace(DISABLED, mps=True)), H100, "gpu", "shares the GPU by MPS"),
        (GpuRules(planned=Planned(None, path="gpus[0]")), H100, "mig-1g-10gb-0", "leaves MIG on"),
        (GpuRules(Mode.STATIC), H100, "mig-1g-10gb-0", "dra.mode static nothing is made"),
        (GpuRules(Mode.STATIC, LAYOUT), H100, "mig-1g-10gb-2", "dra.mode static nothing is made"),
        (GpuRules(share=SHARE // 2), L40S, "mps-8gi-0", "the setting dra.share is 4Gi"),
        (GpuRules(), L40S, "mps-8gi-0", "the setting dra.share is not set"),
        (GpuRules(Mode.STATIC, share=SHARE), L40S, "mps-8gi-0", "static nothing is made"),
        (GpuRules(share=SHARE), H100, "mps-8gi-0", "is in MIG mode"),
        (GpuRules(share=SHARE), mig_off(H100), "mps-8gi-0", "as long as no plan says mig: disab"),
        (
            GpuRules(planned=replace(DISABLED, room=False), share=SHARE),
            mig_off(H100),
            "mps-8gi-0",
            "gpus[0] of the plan says dra: false",
        ),
        (
            GpuRules(planned=replace(DISABLED, mps=True), share=SHARE),
            mig_off(H100),
            "mps-8gi-0",
            "gpus[0] of the plan says how the GPU is shared",
        ),
        (
            GpuRules(share=SHARE),
            replace(L40S, compute_capability=(6, 1)),
            "mps-8gi-0",
            "cannot limit MPS clients",
        ),
    ],
)
def test_devices_that_are_not_offered_any_more(
    rules: GpuRules, gpu: Gpu, device: str, why: str
) -> None:
    """The claim is refused, by name and with the reason; an administrator may look at the GPU."""
    with pytest.raises(ClaimRefused) as refused:
        admit(rules, result(device), gpu, CLAIM)
    assert str(CLAIM) in refused.value.message
    assert device in refused.value.message
    assert why in refused.value.message
    assert refused.value.remedy == (
        "have its pods scheduled again: `kubectl delete pod -n team $(kubectl get resourceclaim "
        "-n team trainer -o jsonpath='{.status.reservedFor[*].name}')`"
    )
    assert not admit(rules, result("gpu", admin_access=True), gpu, CLAIM)


def test_the_plan_says_how_its_devices_are_shared() -> None:
    """A configuration of the claim's for one is refused."""
    shared = result("gpu", configuration=TimeSlice.LONG)
    with pytest.raises(ClaimRefused, match="which the plan does") as refused:
        admit(GpuRules(planned=DISABLED), shared, mig_off(H100), CLAIM)
    assert "`kubectl get resourceclaim -n team trainer -o yaml`" in refused.value.remedy
    assert not admit(GpuRules(), shared, mig_off(H100), CLAIM)
