"""What a configuration makes of a claim's MPS daemon, and what cannot be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.claims.model import ClaimReference, ClaimRefused
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.plan.desired import MpsEntry, Replicas, ShareEntry, Shares
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from tests.claims.machine import no_daemons
from tests.plan.cards import card

H100 = card("h100-80gb")
SLICE = H100.profile("1g.10gb")
GIB = 1 << 30
USER = "3999999999:7"  # who has no entry on any host
DAEMONS = ClaimDaemons(USER, Path("/run/nodeagent"), True, no_daemons)
PATH = "config[0].mps"
TRAINER = ClaimReference("team", "a")


def clients(memory: int | None, *, user: str | None = None) -> MpsEntry:
    """The same limits for all."""
    share = ShareEntry("clients", None, memory, 25.0, f"{PATH}.clients")
    return MpsEntry(PATH, Shares((share,), f"{PATH}.clients"), user=user, enforce="terminate")


def test_limits_and_user() -> None:
    """As a plan's: the class' user or the setting's, whose account is written down with it."""
    found = DAEMONS.wanted(clients(4 * GIB), H100, SLICE, TRAINER)
    share = Share("clients", None, 4096, 25.0)
    assert found == WantedMps(Sharing((share,), "terminate"), Account(3999999999, 7))
    assert found.path == "claim team/a"
    other = DAEMONS.wanted(clients(None, user="3999999998:8"), H100, None, TRAINER)
    assert other.account == Account(3999999998, 8)
    anybody = DAEMONS.wanted(clients(None, user="any"), H100, None, TRAINER)
    assert anybody.account.any_user


def test_equal_parts() -> None:
    """Of the MIG device's memory, or of the whole GPU's."""
    thirds = MpsEntry(PATH, Replicas(3, f"{PATH}.replicas"))
    for profile, memory in ((SLICE, SLICE.memory if SLICE else 0), (None, H100.memory)):
        [share] = DAEMONS.wanted(thirds, H100, profile, TRAINER).sharing.shares
        assert (share.count, share.memory, share.threads) == (3, memory // 3 >> 20, 33.33)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (clients(20 * GIB), "config[0].mps.clients.memory: found 20Gi, but the device has"),
        (
            MpsEntry(PATH, Replicas(9, PATH)),
            "found 9 clients in all, but a 1g.10gb of GPU 0 se",
        ),
        (clients(None, user="no-such-user"), "found 'no-such-user', but this host has no such"),
    ],
)
def test_what_cannot_be(entry: MpsEntry, message: str) -> None:
    """With the claim, the place in its configuration, and a remedy."""
    with pytest.raises(ClaimRefused) as refused:
        DAEMONS.wanted(entry, H100, SLICE, TRAINER)
    assert refused.value.message.startswith("claim team/a: config[0].mps")
    assert message in refused.value.message
    assert "`kubectl get resourceclaim -n team a -o yaml`" in refused.value.remedy
