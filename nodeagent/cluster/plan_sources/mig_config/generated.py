"""Configurations for the cards that are there, for those of which no file knows.

The names and their meaning are those of mig-parted's `generate-config`: all-disabled, all-enabled,
one all-<profile> for each profile with as many as fit, and all-balanced. What is in them was found
to fit on the very card, so nothing depends on the count that a driver claims.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from nodeagent.plan.desired import WantedInstance
from nodeagent.plan.layouts import Card, CardProfile
from nodeagent.plan.names import ProfileName
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.search import best_layout

DISABLED: Final = "all-disabled"
ENABLED: Final = "all-enabled"
BALANCED: Final = "all-balanced"

# How many of which compute slices are balanced, by the slices of the card's largest instance.
_BALANCED_COUNTS: Final[Mapping[int, Mapping[int, int]]] = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}


@dataclass(frozen=True, slots=True)
class GeneratedEntry:
    """One entry of a configuration; `filters` empty: for all cards. `counts` by profile."""

    enabled: bool
    counts: Mapping[str, int] = field(default_factory=dict)
    filters: tuple[str, ...] = ()


Configurations = Mapping[str, tuple[GeneratedEntry, ...]]


def generate(observed: ObservedNode) -> Configurations:
    """The configurations for this node's cards, by the name that a label can hold."""
    found: dict[str, tuple[GeneratedEntry, ...]] = {
        DISABLED: (GeneratedEntry(enabled=False),),
        ENABLED: (GeneratedEntry(enabled=True),),
    }
    several = len({gpu.pci_device_id for gpu in observed.gpus}) > 1
    cards = {
        kind: Card.of(gpu)
        for kind, gpu in sorted(_one_of_each(observed).items())
        if kind or not several  # what has no id cannot be distinguished
    }
    for profile, by_count in _by_profile(cards).items():
        found[label_of(profile)] = tuple(
            GeneratedEntry(True, {profile: count}, _filters(kinds, several=several))
            for count, kinds in sorted(by_count.items())
        )
    balanced = tuple(
        GeneratedEntry(True, counts, _filters([kind], several=several))
        for kind, card in cards.items()
        if (counts := _balanced(card))
    )
    if balanced:
        found[BALANCED] = balanced
    return found


def file_of(configurations: Configurations) -> bytes:
    """A mig-parted file with these configurations; the same bytes for the same ones."""
    return "".join(f"{line}\n" for line in _lines(configurations)).encode()


def label_of(profile: str) -> str:
    """The configuration's name for a profile; a label's value has neither `+` nor `,`."""
    return "all-" + profile.replace("+", ".").replace(",", ".")


def without_profiles(observed: ObservedNode) -> tuple[Gpu, ...]:
    """The GPUs with MIG, or that do not answer, of which no profile is known."""
    return tuple(
        gpu
        for gpu in observed.gpus
        if not any(p.placements for p in gpu.profiles)
        and (gpu.mig is not None or gpu.access is not Access.OK)
    )


# --- what fits ------------------------------------------------------------------------------------


def _one_of_each(observed: ObservedNode) -> dict[int, Gpu]:
    """A GPU of each type with MIG. What is known of one counts, also while it does not answer."""
    found: dict[int, Gpu] = {}
    for gpu in observed.gpus:
        if any(profile.placements for profile in gpu.profiles):
            found.setdefault(gpu.pci_device_id, gpu)
    return found


def _by_profile(cards: Mapping[int, Card]) -> dict[str, dict[int, list[int]]]:
    """The types of cards that hold a profile, by how many of it they hold."""
    found: dict[str, dict[int, list[int]]] = {}
    for kind, card in cards.items():
        for name, profile in card.profiles.items():
            if count := _most(card, profile):
                found.setdefault(name, {}).setdefault(count, []).append(kind)
    return found


def _most(card: Card, profile: CardProfile) -> int:
    """How many fit beside each other."""
    return next((n for n in range(profile.limit, 0, -1) if _fits(card, {profile.name: n})), 0)


def _fits(card: Card, counts: Mapping[str, int]) -> bool:
    wanted = [
        WantedInstance(name, card.profiles[name].profile.slices, None, "")
        for name, count in counts.items()
        for _ in range(count)
    ]
    return best_layout(card, wanted, ()) is not None


def _balanced(card: Card) -> dict[str, int]:
    """Some of each size; empty where the card has no such division."""
    plain = [p for p in card.profiles.values() if not ProfileName.parse(p.name).attributes]
    largest = max((p.profile.slices for p in plain), default=0)
    counts: dict[str, int] = {}
    for slices, count in _BALANCED_COUNTS.get(largest, {}).items():
        alike = [p for p in plain if p.profile.slices == slices]
        if not alike:
            return {}
        # Of equal compute the smaller memory, of which there can be more.
        chosen = max(alike, key=lambda p: (_most(card, p), -p.profile.memory))
        counts[chosen.name] = count
    return counts if counts and _fits(card, counts) else {}


def _filters(kinds: list[int], *, several: bool) -> tuple[str, ...]:
    return tuple(f"0x{kind:08X}" for kind in sorted(kinds)) if several else ()


# --- as text --------------------------------------------------------------------------------------


def _lines(configurations: Configurations) -> Iterator[str]:
    yield "# Made for this node's cards."
    yield "version: v1"
    yield "mig-configs:"
    for name, entries in configurations.items():
        yield f"  {name}:"
        for entry in entries:
            if entry.filters:
                yield f"    - device-filter: {json.dumps(entry.filters)}"
                yield "      devices: all"
            else:
                yield "    - devices: all"
            yield f"      mig-enabled: {'true' if entry.enabled else 'false'}"
            if entry.enabled:
                yield f"      mig-devices: {json.dumps(entry.counts)}"
