"""Which claims may be on one GPU side by side, whatever the scheduler says."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.claims.admission import require_admission
from nodeagent.claims.allocation import ClaimRefused
from nodeagent.claims.model import ClaimedDevice, ClaimRecord
from nodeagent.plan.observed import Placement
from nodeagent.structs import replace
from tests.claims.samples import mig_device, mig_result, record
from tests.plan.cards import card

GPU = card("h100-80gb")
BESIDE = Placement(6, 1)


def own(*devices: ClaimedDevice) -> ClaimRecord:
    """The claim that is to be admitted."""
    return record(*(replace(device, gpu=GPU.uuid) for device in devices))


def other(device: ClaimedDevice) -> ClaimRecord:
    """Another claim."""
    placed = device if device.gpu == "elsewhere" else replace(device, gpu=GPU.uuid)
    return record(placed, uid="2", name="other")


def whole(**result: Any) -> ClaimedDevice:
    """The GPU as a whole."""
    found = mig_result(**{"device": "gpu", **result})
    return mig_device(result=found, profile="", placement=None)


@pytest.mark.parametrize("fixed", [False, True])
def test_one_part_of_a_gpu_is_one_claims(fixed: bool) -> None:
    """Made for it or by the plan; what an administrator has is in nobody's way."""
    held = mig_device(fixed=fixed)
    for wanted in (mig_device(), whole(), mig_device(fixed=True)):
        with pytest.raises(ClaimRefused, match=r"mig-1g-10gb-4 of claim team/other"):
            require_admission(own(wanted), GPU, [other(held)], ())
    require_admission(own(mig_device(placement=BESIDE)), GPU, [other(held)], ())
    require_admission(own(whole(admin_access=True)), GPU, [other(held)], ())
    require_admission(own(mig_device()), GPU, [other(whole(admin_access=True))], ())
