"""From the label to a plan: the configuration it names, of the mounted file or generated.

A configuration is generated for the cards that are there, where no file has it for them. The names
and their meaning are those of mig-parted's `generate-config`: all-disabled, all-enabled, one
all-<profile> for each profile with as many as fit, and all-balanced. What is in them was found to
fit on the very card, so nothing depends on the count that a driver claims.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from nodeagent.documents.bounded_yaml import read_tree
from nodeagent.documents.reading import read_document
from nodeagent.errors import DocumentError
from nodeagent.plan.desired import WantedInstance
from nodeagent.plan.layouts import Card, CardProfile
from nodeagent.plan.names import ProfileName
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.resolve import select
from nodeagent.plan.search import best_layout
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.structs import Struct
from nodeagent.text import listed, nearest_names, quote

_MIG_CONFIGS = "mig-configs"
CONFIG: Final = "nvidia.com/mig.config"
_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

DISABLED: Final = "all-disabled"
ENABLED: Final = "all-enabled"
BALANCED: Final = "all-balanced"

# How many of which compute slices are balanced, by the slices of the card's largest instance.
_BALANCED_COUNTS: Final[Mapping[int, Mapping[int, int]]] = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}


def can_be_named(name: str) -> bool:
    """Whether a label can hold this name: some names in a file cannot be chosen by label."""
    return _VALUE.fullmatch(name) is not None


class DeferredMigConfig(Struct, frozen=True):
    """The configuration `name`, as in the label; `file_text` is the mounted mig-parted file, None
    without one.
    """

    name: str
    file_text: bytes | None

    def on(self, observed: ObservedNode) -> PlanUpdate:
        """What it means for this node's cards.

        The file counts first. A configuration is generated where there is no file, where it has
        none of that name, and where what it has of that name is for none of this node's cards. A
        file that cannot be read is offered as it is, so that it is refused with its own faults. To
        read a large file takes tens of milliseconds.
        """
        name, text = self.name, self.file_text
        in_file = () if text is None else configuration_names(text)
        if text is not None and in_file is None:
            return PlanText(text, name)
        known = in_file or ()
        generated = generate(observed)
        if (
            text is not None
            and name in known
            and (name not in generated or _is_for_this_node(text, name, observed))
        ):
            return PlanText(text, name)
        if name in generated and (name in known or observed.gpus):
            # Alone: what else could be made changes with what the driver reports.
            return PlanText(file_of({name: generated[name]}), name)
        return _unknown(name, known, generated, observed, has_file=text is not None)


def configuration_names(file_text: bytes) -> tuple[str, ...] | None:
    """The names in a mig-parted file; None when it is none or cannot be read."""
    try:
        value = read_tree(file_text).value
    except DocumentError:
        return None
    configurations = value.get(_MIG_CONFIGS) if isinstance(value, dict) else None
    return tuple(configurations) if isinstance(configurations, dict) else None


def _is_for_this_node(file_text: bytes, name: str, observed: ObservedNode) -> bool:
    try:
        document = read_document(file_text, configuration=name)
    except DocumentError:
        return True  # a fault in the file is reported as such
    # An index that the node does not have is such a fault too.
    problems: list[Problem] = []
    chosen = [select(entry, observed, problems) for entry in document.entries]
    return any(chosen) or bool(problems)


# --- an unknown name ------------------------------------------------------------------------------


def _unknown(
    name: str,
    in_file: Iterable[str],
    generated: Iterable[str],
    observed: ObservedNode,
    *,
    has_file: bool,
) -> NoPlan | UnreadablePlan:
    silent = without_profiles(observed)
    waiting = [gpu for gpu in silent if not gpu.answers]
    if not observed.gpus or waiting:
        who = listed(f"GPU {gpu.index}" for gpu in waiting) or "the node's GPUs"
        return NoPlan(
            f"the configuration {quote(name)} is not known yet: {who} did not answer so far, and "
            "it may be one for them"
        )
    known = [one for one in dict.fromkeys((*in_file, *generated)) if can_be_named(one)]
    where = "neither in the mounted file nor" if has_file else "not"
    return UnreadablePlan(
        Problem.of(
            Code.UNKNOWN_CONFIGURATION,
            "ofLabel",
            label=CONFIG,
            name=quote(name),
            where=where,
            remedy=_remedy(name, known, silent),
        )
    )


def _remedy(name: str, known: list[str], silent: tuple[Gpu, ...]) -> str:
    near = nearest_names(name, known)
    remedy = f"did you mean {' or '.join(near)}? " if near else ""
    remedy += f"known are {listed(known)}"
    if silent:
        gpus = listed(f"GPU {gpu.index}" for gpu in silent)
        remedy += (
            f"; the driver reports no profiles of {gpus} now, and some drivers do so only in MIG "
            "mode: all-enabled switches it on"
        )
    return remedy


# --- generated configurations ---------------------------------------------------------------------


Entry = dict[str, Any]
Configurations = Mapping[str, tuple[Entry, ...]]


def entry_with(counts: Mapping[str, int], filters: Collection[str] = ()) -> Entry:
    """An entry with these devices on each card, by profile; without `filters` for all cards."""
    chosen = {"device-filter": filters} if filters else {}
    return {**chosen, "devices": "all", "mig-enabled": True, "mig-devices": counts}


def generate(observed: ObservedNode) -> Configurations:
    """The configurations for this node's cards, by the name that a label can hold."""
    found: dict[str, tuple[Entry, ...]] = {
        DISABLED: ({"devices": "all", "mig-enabled": False},),
        ENABLED: (entry_with({}),),
    }
    several = len({gpu.pci_device_id for gpu in observed.gpus}) > 1
    cards = {
        kind: Card.of(gpu)
        for kind, gpu in sorted(_one_of_each(observed).items())
        if kind or not several  # what has no id cannot be distinguished
    }
    for profile, by_count in _by_profile(cards).items():
        found[label_of(profile)] = tuple(
            entry_with({profile: count}, _filters(kinds, several=several))
            for count, kinds in sorted(by_count.items())
        )
    balanced = tuple(
        entry_with(counts, _filters([kind], several=several))
        for kind, card in cards.items()
        if (counts := _balanced(card))
    )
    if balanced:
        found[BALANCED] = balanced
    return found


def file_of(configurations: Configurations) -> bytes:
    """A mig-parted file with these configurations; the same bytes for the same ones."""
    document = {"version": "v1", _MIG_CONFIGS: configurations}
    return json.dumps(document, separators=(",", ":")).encode()


def label_of(profile: str) -> str:
    """The configuration's name for a profile; a label's value has neither `+` nor `,`."""
    return "all-" + profile.replace("+", ".").replace(",", ".")


def without_profiles(observed: ObservedNode) -> tuple[Gpu, ...]:
    """The GPUs with MIG, or that do not answer, of which no profile is known."""
    return tuple(
        gpu
        for gpu in observed.gpus
        if not any(p.placements for p in gpu.profiles) and (gpu.mig is not None or not gpu.answers)
    )


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
    """A layout with some devices of each size, by profile; empty where the card has none."""
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
