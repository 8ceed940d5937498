"""The users that a plan or a claim names, as the host knows them.

May ask a directory service (LDAP), and block for as long as that takes.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Mapping

from nodeagent.plan.desired import PlanDocument
from nodeagent.plan.shares import ANY_USER, Account, user_ids

_MAX_ID = 2**32 - 2  # the number above means "no change" to the kernel


def accounts_for(document: PlanDocument, default_user: str) -> Mapping[str, Account]:
    """Each `user` in the document, and the default, as `accounts_of` has them."""
    named = {mps.user for entry in document.entries for mps in entry.mps_entries() if mps.user}
    return accounts_of({default_user, *named})


def accounts_of(users: Collection[str]) -> Mapping[str, Account]:
    """Each of the `users` by its text; unknown ones are left out.

    `uid:gid` is taken at its word and has no further groups. A uid alone has the group and the
    further groups that its user has, or its own number as group where there is no such user.
    """
    found = {user: _account(user) for user in sorted(users)}
    return {user: account for user, account in found.items() if account is not None}


def _account(user: str) -> Account | None:
    if user == ANY_USER:  # a word of the plan's; whom such a server runs as, the plan knows
        return None
    ids = user_ids(user)
    if ids is None:
        return _entry(user)
    if max(ids) > _MAX_ID:
        return None
    return (None if ":" in user else _entry(ids[0])) or Account(*ids)


def _entry(user: str | int) -> Account | None:
    """Look the user up in the user database; None when it has no such user."""
    try:
        entry = pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
    except (KeyError, ValueError):  # ValueError: a zero byte in the name
        return None
    # In order, because a daemon whose groups differ has to be started anew.
    groups = sorted(set(os.getgrouplist(entry.pw_name, entry.pw_gid)) - {entry.pw_gid})
    return Account(entry.pw_uid, entry.pw_gid, tuple(groups))
