"""How the agent stands with its cluster at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class ClusterState:
    """`since` is when `reachable` became what it is, None while it was never otherwise.

    `registered`: the cluster has a Node of this name. `problem` says what is wrong, "" if nothing.
    """

    server: str
    reachable: bool
    since: datetime | None = None
    registered: bool = False
    problem: str = ""
    remedy: str = ""
