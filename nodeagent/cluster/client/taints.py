"""The taints that the agent puts on its Node, among those of others. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

UNHEALTHY: Final = "nodeagent.io/gpu-unhealthy"
CHANGING: Final = "nodeagent.io/gpu-changing"

Taint = Mapping[str, Any]  # as the API server writes it


def has_taint(taints: Iterable[Taint], key: str) -> bool:
    """With any effect."""
    return any(taint.get("key") == key for taint in taints)


def taints_with(taints: Iterable[Taint], wanted: Mapping[str, bool]) -> list[Taint]:
    """These taints with those that are wanted and without those that are not.

    A patch replaces the Node's list, so it has to name the version that it was made for.
    """
    others = [taint for taint in taints if taint.get("key") not in wanted]
    return others + [{"key": k, "effect": "NoSchedule"} for k, is_on in wanted.items() if is_on]
