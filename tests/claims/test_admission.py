"""Which claims may have a device, and which may be on one GPU side by side."""

from typing import Any

import pytest

from nodeagent.claims.capacity import Consumed
from nodeagent.claims.model import (
    CLASSES,
    ClaimedDevice,
    ClaimHeldUp,
    ClaimRecord,
    ClaimReference,
    ClaimRefused,
    Configuration,
    RecordPhase,
    Result,
)
from nodeagent.claims.offering.gpu_rules import FixedInstance, GpuRules, Mode, Planned
from nodeagent.claims.serving.admission import admit, joined, require_admission
from nodeagent.plan import desired
from nodeagent.plan.observed import Gpu, Placement
from nodeagent.plan.shares import Account, Share, TimeSlice, WantedMps
from nodeagent.structs import replace
from tests.claims.boards import mig_off
from tests.claims.samples import mig_device, record, share_of_gpu, whole_device, with_goal
from tests.plan.cards import card, with_instances
from tests.plan.daemons import A, D, daemon, give

# --- beside other claims --------------------------------------------------------------------------


GPU = card("h100-80gb")
BESIDE = Placement(6, 1)
ANY = replace(A, account=Account(0, 0, any_user=True))


def own(*devices: ClaimedDevice) -> ClaimRecord:
    return record(*(replace(device, gpu=GPU.uuid) for device in devices))


def other(device: ClaimedDevice) -> ClaimRecord:
    placed = device if device.gpu == "elsewhere" else replace(device, gpu=GPU.uuid)
    return record(placed, uid="2", name="other")


@pytest.mark.parametrize("fixed", [False, True])
def test_one_part_of_a_gpu_is_one_claims(fixed: bool) -> None:
    """Made for it or by the plan; what an administrator has is in nobody's way."""
    held = mig_device(fixed=fixed)
    for wanted in (mig_device(), whole_device(), mig_device(fixed=True)):
        with pytest.raises(ClaimRefused, match=r"mig-1g-10gb-4 of claim team/other") as refused:
            require_admission(own(wanted), GPU, [other(held)], ())
        assert own(wanted).reference.schedule_anew in refused.value.remedy
    require_admission(own(mig_device(placement=BESIDE)), GPU, [other(held)], ())
    require_admission(own(whole_device(admin_access=True)), GPU, [other(held)], ())
    require_admission(own(mig_device()), GPU, [other(whole_device(admin_access=True))], ())


def test_a_claim_that_was_made_again_under_its_name() -> None:
    """It is another one, and the message says which of the two has the device."""
    earlier = replace(own(mig_device()), uid="2")
    with pytest.raises(ClaimRefused, match="held: mig-1g-10gb-4 of the earlier claim team/trainer"):
        require_admission(own(mig_device()), GPU, [earlier], ())


def claim(mps: WantedMps | None, **changes: Any) -> ClaimedDevice:
    return mig_device(placement=BESIDE, mps=mps, **changes)


@pytest.mark.parametrize(("theirs", "user"), [(D, "2000"), (ANY, "any")])
def test_one_gpu_has_clients_of_one_user(theirs: WantedMps, user: str) -> None:
    """Both claims and both users are named."""
    wanted = own(mig_device(mps=A))
    with pytest.raises(ClaimRefused) as refused:
        require_admission(wanted, GPU, [other(claim(theirs))], ())
    message = refused.value.message
    assert message.startswith("claim team/trainer wants MPS as user 1000 on GPU 0 (")
    assert f"where it runs as user {user} for claim team/other" in message
    assert refused.value.remedy.startswith("name a DeviceClass with the same mps.user in spec.")
    assert CLASSES in refused.value.remedy


def test_a_plans_daemon_on_the_gpu() -> None:
    """A new claim has its user, too; one that is there already stays, whatever plan came."""
    gpu = give(with_instances(GPU, [("3g.40gb", 0)]), daemon(D))
    wanted = own(mig_device(mps=A))
    require_admission(wanted, gpu, [], ())
    begun = replace(wanted, phase=RecordPhase.INTENT)
    with pytest.raises(
        ClaimRefused, match=r"as user 1000 on .* as user 2000 for gpus\[0\].mps:"
    ) as no:
        require_admission(begun, gpu, [], ())
    assert no.value.remedy.endswith("or write user: 1000 at gpus[0].mps")
    require_admission(begun, give(gpu, daemon(A)), [], ())
    require_admission(replace(own(mig_device()), phase=RecordPhase.INTENT), gpu, [], ())


def test_the_same_user_with_other_groups_or_limits() -> None:
    """Is one user; so is one without MPS, and one on another GPU."""
    groups = replace(A, account=replace(A.account, groups=(7,)))
    for device in (claim(groups), claim(None), claim(D, gpu="elsewhere")):
        require_admission(own(mig_device(mps=A)), GPU, [other(device)], ())
    require_admission(own(mig_device()), GPU, [other(claim(D))], ())


# --- what is offered ------------------------------------------------------------------------------


H100, L40S = card("h100-80gb"), card("l40s")
TRAINER = ClaimReference("team", "trainer")
LAYOUT = Planned(
    desired.DesiredGpu(desired.Layout((), "gpus[0].mig"), "gpus[0]"),
    (FixedInstance("3g.40gb", 4), FixedInstance("1g.10gb", 0, "the plan divides it")),
)
DISABLED = Planned(desired.DesiredGpu(desired.MigDisabled("gpus[0].mig"), "gpus[0]"))
KEPT = Planned(desired.DesiredGpu(None, "gpus[0]"))
ENABLED = Planned(desired.DesiredGpu(desired.MigEnabled("gpus[0].mig"), "gpus[0]"))


def allocated_result(device: str, **changes: object) -> Result:
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
        (GpuRules(planned=KEPT), "gpu", True),
    ],
)
def test_devices_that_a_claim_may_have(rules: GpuRules, device: str, *, fixed: bool) -> None:
    """What the plan has, and everything in mode static, is only used."""
    gpu = H100 if device.startswith("mig-") else mig_off(H100)
    assert admit(rules, allocated_result(device), gpu, TRAINER) is fixed


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
        (GpuRules(planned=with_goal(LAYOUT, dra=False)), H100, "mig-1g-10gb-2", "dra: false"),
        (GpuRules(planned=with_goal(ENABLED, dra=False)), H100, "mig-1g-10gb-2", "dra: false"),
        (GpuRules(planned=replace(LAYOUT, is_there=False)), H100, "mig-1g-10gb-2", "not there yet"),
        (GpuRules(planned=LAYOUT), H100, "mig-4g-40gb-0", "no room for it beside"),
        (GpuRules(planned=LAYOUT), H100, "mig-1g-10gb-0", "the plan divides it"),
        (GpuRules(planned=LAYOUT), H100, "gpu", "gpus[0] of the plan has MIG enabled"),
        (GpuRules(planned=DISABLED), H100, "mig-1g-10gb-0", "gpus[0] of the plan has MIG disabled"),
        (GpuRules(planned=with_goal(DISABLED, mps=A)), H100, "gpu", "shares the GPU by MPS"),
        (GpuRules(planned=KEPT), H100, "mig-1g-10gb-0", "leaves MIG on"),
        (GpuRules(planned=KEPT), H100, "gpu", "leaves MIG on"),
        (GpuRules(Mode.STATIC), H100, "mig-1g-10gb-0", "dra.mode static nothing is made"),
        (GpuRules(Mode.STATIC, LAYOUT), H100, "mig-1g-10gb-2", "dra.mode static nothing is made"),
    ],
)
def test_devices_that_are_not_offered_any_more(
    rules: GpuRules, gpu: Gpu, device: str, why: str
) -> None:
    """The claim is refused, by name and with the reason; an administrator may look at the GPU."""
    with pytest.raises(ClaimRefused) as refused:
        admit(rules, allocated_result(device), gpu, TRAINER)
    assert str(TRAINER) in refused.value.message
    assert device in refused.value.message
    assert why in refused.value.message
    assert refused.value.remedy == (
        "have its pods scheduled again: `kubectl delete pod -n team $(kubectl get resourceclaim "
        "-n team trainer -o jsonpath='{.status.reservedFor[*].name}')`"
    )
    assert not admit(rules, allocated_result("gpu", admin_access=True), gpu, TRAINER)


def with_plan(share: desired.SharedBy | None = "memory", **changes: Any) -> GpuRules:
    """Of a GPU that the plan keeps outside MIG mode."""
    return GpuRules(planned=with_goal(DISABLED, share=share, **changes))


@pytest.mark.parametrize(
    ("rules", "gpu", "why"),
    [
        (GpuRules(), L40S, "the setting dra.share has share off"),
        (
            GpuRules(share="memory", planned=with_goal(DISABLED, share="off")),
            L40S,
            "gpus[0] of the p",
        ),
        (GpuRules(Mode.STATIC, share="memory"), L40S, "static nothing is made"),
        (with_plan(dra=False), L40S, "gpus[0] of the plan says dra: false"),
        (with_plan(mps=A), mig_off(H100), "gpus[0] of the plan shares the GPU by MPS"),
        (
            with_plan(time_slice=TimeSlice.LONG),
            L40S,
            "gpus[0] of the plan says how the GPU is shared",
        ),
        (GpuRules(planned=ENABLED, share="memory"), mig_off(H100), "has MIG enabled"),
        (GpuRules(share="memory"), replace(L40S, compute_capability=(6, 1)), "cannot limit MPS cl"),
        (GpuRules(share=48), replace(L40S, memory=8 << 30), "too little memory for shares (48)"),
    ],
)
def test_shares_that_are_not_offered_any_more(rules: GpuRules, gpu: Gpu, why: str) -> None:
    with pytest.raises(ClaimRefused) as refused:
        admit(rules, allocated_result("gpu"), gpu, TRAINER, shared=True)
    assert why in refused.value.message
    assert TRAINER.schedule_anew in refused.value.remedy


def test_a_share_of_a_gpu_of_the_plan() -> None:
    """Its daemon is made for the claims, while those that take turns only use the GPU."""
    whole = allocated_result("gpu")
    assert not admit(with_plan(), whole, mig_off(H100), TRAINER, shared=True)
    assert admit(with_plan("time"), whole, mig_off(H100), TRAINER, shared=True)
    assert admit(with_plan("time", time_slice=TimeSlice.LONG), whole, L40S, TRAINER, shared=True)
    assert not admit(GpuRules(share="time"), whole, L40S, TRAINER, shared=True)


@pytest.mark.parametrize(
    ("share", "configuration", "message"),
    [
        ("memory", TimeSlice.DEFAULT, "requests timeSlice on a share of GPU 0 (NVIDIA L40S), whic"),
        (
            "time",
            desired.MpsEntry("mps", desired.Replicas(2, "")),
            "requests mps on a share of GPU 0 (NVIDIA L40S)",
        ),
        ("time", TimeSlice.LONG, "timeSlice on a share of GPU 0 (NVIDIA L40S), which claims share"),
    ],
)
def test_a_configuration_that_a_share_cannot_have(
    share: desired.SharedBy, configuration: Configuration, message: str
) -> None:
    wanted = allocated_result("gpu", configuration=configuration)
    with pytest.raises(ClaimRefused) as refused:
        admit(GpuRules(share=share), wanted, L40S, TRAINER, shared=True)
    assert message in refused.value.message
    assert TRAINER.show in refused.value.remedy


@pytest.mark.parametrize(("share", "clients"), [("memory", 0), ("time", 1)])
def test_a_share_of_before_the_setting_was_changed(share: desired.SharedBy, clients: int) -> None:
    """By turns nothing would hold a claim to the limits that it was allocated."""
    wanted = allocated_result("gpu", consumed=Consumed(8 << 30, 0, clients))
    with pytest.raises(ClaimRefused, match="when claims shared it in another way, by MPS or by"):
        admit(GpuRules(share=share), wanted, L40S, TRAINER, shared=True)


@pytest.mark.parametrize("shared", [False, True])
def test_one_claim_that_wants_a_gpu_as_two_users(shared: bool) -> None:
    """Of its two requests one would have the other's daemon."""
    one, other = mig_device(mps=A), mig_device(mps=D, placement=BESIDE)
    stricter = replace(A, sharing=replace(A.sharing, enforce="terminate"))
    if shared:
        one, other = share_of_gpu(mps=A), share_of_gpu(mps=stricter, share_id="share-2")
    with pytest.raises(ClaimRefused, match="with another MPS user or enforce each") as refused:
        require_admission(own(one, other), GPU, [], ())
    assert CLASSES in refused.value.remedy
    require_admission(record(replace(one, gpu=GPU.uuid), other), GPU, [], ())
    require_admission(own(one, replace(other, mps=A)), GPU, [], ())


# --- one daemon for several GPUs ------------------------------------------------------------------

BOTH = tuple(sorted((GPU.uuid, "GPU-2")))
TOGETHER = replace(A, devices=BOTH)


def share(gpu: str = GPU.uuid, mps: WantedMps = A, **changes: Any) -> ClaimedDevice:
    wanted = replace(
        mps, sharing=replace(mps.sharing, shares=(Share("mine", None, 2048, 10.0, total=4096),))
    )
    return share_of_gpu(gpu, wanted, **changes)


def test_a_share_beside_a_claim_with_more_gpus() -> None:
    """It has its place in the daemon of all of them, where it has its own GPU alone."""
    there = record(share(mps=TOGETHER), share("GPU-2", TOGETHER), uid="2", name="job")
    [found] = joined(record(share("GPU-2")), [there]).devices
    assert found.mps
    assert found.mps.devices == BOTH
    assert found.mps.sharing.shares[0].by_device == (("GPU-2", 2048, 4096),)
    mine = record(found)
    assert mine.gpus == {*BOTH}
    require_admission(mine, GPU, [there], ())
    assert joined(there, [mine]) == there
    elsewhere = record(share("GPU-3"))
    assert joined(elsewhere, [there]) == elsewhere
    one = replace(A, devices=(GPU.uuid, "GPU-3"))
    beside_a_whole = record(share(mps=one), whole_device("GPU-3", one))
    wider = record(share(mps=replace(A, devices=(GPU.uuid, "GPU-2", "GPU-3"))), uid="2")
    assert joined(beside_a_whole, [wider]) == beside_a_whole


@pytest.mark.parametrize(
    ("mine", "theirs", "wants", "has"),
    [
        (share(mps=TOGETHER), share(), " and ".join(BOTH), GPU.uuid),
        (share(), share(mps=TOGETHER), GPU.uuid, " and ".join(BOTH)),
        (whole_device(GPU.uuid), share("GPU-2", TOGETHER), "", " and ".join(BOTH)),
        (mig_device(gpu=GPU.uuid), share("GPU-2", TOGETHER), "", " and ".join(BOTH)),
        (share("GPU-2", TOGETHER), mig_device(gpu=GPU.uuid), " and ".join(BOTH), ""),
    ],
    ids=["grows", "shrinks", "one that is left", "a part of it", "a part that is there"],
)
def test_the_gpus_of_a_daemon_stay_the_same(
    mine: ClaimedDevice, theirs: ClaimedDevice, wants: str, has: str
) -> None:
    """As long as a claim has it: containers have their directory and count their devices."""
    there = record(theirs, uid="2", name="job")
    with pytest.raises(ClaimHeldUp) as refused:
        require_admission(record(mine), GPU, [there], ())
    words = [f"an MPS daemon for {gpus}" if gpus else "none" for gpus in (wants, has)]
    assert refused.value.message == (
        f"claim team/trainer wants {GPU.title} with {words[0]}, but claim team/job has it with "
        f"{words[1]}: the GPUs of an MPS daemon stay the same as long as a claim has it"
    )


def test_the_plan_says_how_its_devices_are_shared() -> None:
    """A configuration of the claim's for one is refused."""
    shared = allocated_result("gpu", configuration=TimeSlice.LONG)
    with pytest.raises(ClaimRefused, match="which the plan does") as refused:
        admit(GpuRules(planned=DISABLED), shared, mig_off(H100), TRAINER)
    assert "`kubectl get resourceclaim -n team trainer -o yaml`" in refused.value.remedy
    assert not admit(GpuRules(), shared, mig_off(H100), TRAINER)
