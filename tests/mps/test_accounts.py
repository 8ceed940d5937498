"""Users of a plan, as this host knows them."""

from __future__ import annotations

import grp
import os
import pwd

import pytest

from nodeagent.mps.accounts import accounts_for
from nodeagent.plan.desired import (
    InstanceEntry,
    MigLayout,
    MpsEntry,
    PlanDocument,
    PlanEntry,
    Replicas,
)
from nodeagent.plan.shares import Account

UNKNOWN_UID = 3_999_999_999


def document(*users: str | None) -> PlanDocument:
    """A plan that names these: the first for a GPU, the others for instances."""
    first, *others = users or (None,)
    layout = MigLayout(
        tuple(
            InstanceEntry("1g.10gb", 1, "", mps=MpsEntry("", Replicas(1, ""), user=user))
            for user in others
        ),
        "",
    )
    entries = (
        PlanEntry("gpus[0]", None, "", mps=MpsEntry("", Replicas(1, ""), user=first)),
        PlanEntry("gpus[1]", None, "", mig=layout),
        PlanEntry("gpus[2]", None, ""),
    )
    return PlanDocument(entries, "sha256:0")


def test_a_uid_without_an_entry() -> None:
    """It has its own number as group, and no further ones."""
    found = accounts_for(document(str(UNKNOWN_UID)), "1000")
    assert found[str(UNKNOWN_UID)] == Account(UNKNOWN_UID, UNKNOWN_UID)
    assert "1000" in found


def test_a_uid_with_an_entry() -> None:
    """Has the groups that its user has, as when that user logs in."""
    entry = pwd.getpwall()[0]
    found = accounts_for(document(), str(entry.pw_uid))[str(entry.pw_uid)]
    groups = {g.gr_gid for g in grp.getgrall() if entry.pw_name in g.gr_mem}
    assert (found.uid, found.gid) == (entry.pw_uid, entry.pw_gid)
    assert set(found.groups) == groups - {entry.pw_gid}
    assert list(found.groups) == sorted(found.groups)


@pytest.mark.parametrize("where", [0, 1])
def test_names(where: int) -> None:
    """Wherever the plan names them."""
    me = pwd.getpwuid(os.geteuid())
    users: list[str | None] = [None, None]
    users[where] = me.pw_name
    found = accounts_for(document(*users), "1000")[me.pw_name]
    assert (found.uid, found.gid, found.any_user) == (me.pw_uid, me.pw_gid, False)


def test_uid_and_gid() -> None:
    """Are taken at their word."""
    assert accounts_for(document("0:77"), "5:6") == {"0:77": Account(0, 77), "5:6": Account(5, 6)}


@pytest.mark.parametrize(
    "user",
    [
        "no-such-user",
        "a\0b",
        "",
        "a\nb",
        "../x",
        "-1",
        "4294967295",
        "1:4294967296",
        "any",
        "1:",
        "\u0663",
    ],
)
def test_who_is_unknown(user: str) -> None:
    """Is left out, and nothing is guessed."""
    assert user not in accounts_for(document(user), "1000")
