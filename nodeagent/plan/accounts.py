"""What of the host, beside its GPUs, bears on what a plan means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.plan.shares import Account

ANY_USER = "any"  # as `user`: a server that takes clients of every user, and so runs as root


@dataclass(frozen=True, slots=True)
class Host:
    """`default_user` is whom MPS runs as where the plan does not say. `accounts` are those that
    were looked up, by the text of `user` (`1000`, `1000:1000`, `alice`); a name that is not in it
    is unknown to the host, a uid has its own number as group.
    """

    default_user: str = "1000"
    accounts: Mapping[str, Account] = field(default_factory=dict)
