"""How the agent stands with its cluster at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nodeagent.views.times import time_json


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


def cluster_json(cluster: ClusterState) -> dict[str, Any]:
    """The cluster's part of the status."""
    report: dict[str, Any] = {
        "server": cluster.server,
        "reachable": cluster.reachable,
        "registered": cluster.registered,
    }
    if cluster.since:
        report["since"] = time_json(cluster.since)
    if cluster.problem:
        report["problem"] = {"message": cluster.problem, "remedy": cluster.remedy}
    return report
