"""What there is to simulate, and how well each figure of it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodeagent.simulation.boards import board_names, read_board

_MIB = 1 << 20
_STATUSES = ("assumed", "inferred", "single-source", "confirmed")  # weakest first


@dataclass(frozen=True, slots=True)
class KnownProfile:
    """A profile as `simulate boards` shows it: how many fit, bytes of memory, the evidence."""

    name: str
    max_instances: int
    memory: int
    status: str


@dataclass(frozen=True, slots=True)
class KnownBoard:
    """A board as `simulate boards` shows it. `memory` in bytes; `assumed` names the fields of
    the card itself that there is no evidence for.
    """

    name: str
    product: str
    memory: int
    profiles: tuple[KnownProfile, ...]
    assumed: tuple[str, ...]


def known_boards() -> tuple[KnownBoard, ...]:
    """What there is to simulate and how well it is known, for people to read."""
    return tuple(_describe(read_board(name)) for name in board_names())


def _describe(raw: Mapping[str, Any]) -> KnownBoard:
    return KnownBoard(
        name=raw["board"],
        product=raw["product"],
        memory=raw["memory_mib"] * _MIB,
        profiles=tuple(
            KnownProfile(
                name=p["name"],
                max_instances=p["max_instances"],
                memory=p["memory_mib"] * _MIB,
                status=_weakest(p["provenance"]),
            )
            for p in raw["profiles"]
        ),
        assumed=tuple(
            field for field, known in raw["provenance"].items() if known["status"] == "assumed"
        ),
    )


def _weakest(provenance: Mapping[str, Mapping[str, Any]]) -> str:
    found = {known["status"] for known in provenance.values()}
    return next(status for status in _STATUSES if status in found)
