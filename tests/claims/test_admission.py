"""Which claims may be on one GPU side by side, whatever the scheduler says."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.claims.model import CLASSES, ClaimedDevice, ClaimRecord, ClaimRefused, RecordPhase
from nodeagent.claims.serving.admission import require_admission
from nodeagent.plan.observed import Placement
from nodeagent.plan.shares import Account, WantedMps
from nodeagent.structs import replace
from tests.claims.samples import mig_device, record, whole_device
from tests.plan.cards import card, with_instances
from tests.plan.daemons import A, D, daemon, give

GPU = card("h100-80gb")
BESIDE = Placement(6, 1)
ANY = replace(A, account=Account(0, 0, any_user=True))


def own(*devices: ClaimedDevice) -> ClaimRecord:
    """The claim that is to be admitted."""
    return record(*(replace(device, gpu=GPU.uuid) for device in devices))


def other(device: ClaimedDevice) -> ClaimRecord:
    """Another claim."""
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
    """A device beside the first, with this daemon."""
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
