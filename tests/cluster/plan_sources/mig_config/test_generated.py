"""Configurations made for the cards there are: upstream's names and counts, and all of them fit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

from nodeagent.cluster.plan_sources.mig_config.to_plan import (
    BALANCED,
    DISABLED,
    ENABLED,
    GeneratedEntry,
    can_be_named,
    file_of,
    generate,
    without_profiles,
)
from nodeagent.documents.reading import read_document
from nodeagent.errors import DocumentError
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.plan import Verdict
from nodeagent.plan.planner import plan
from nodeagent.plan.resolve import resolve
from nodeagent.simulation import known_boards
from nodeagent.structs import replace
from tests.plan.cards import card, present

DEFAULTS = Path(__file__).parents[4] / "examples" / "mig-parted" / "config.yaml"
BOARDS = [board.name for board in known_boards()]


def node(*gpus: Gpu) -> ObservedNode:
    """These cards side by side, each with an index and a UUID of its own."""
    return ObservedNode(tuple(replace(g, index=i, uuid=f"GPU-{i}") for i, g in enumerate(gpus)))


@pytest.mark.parametrize("board", BOARDS)
def test_every_configuration_fits_on_every_card(board: str) -> None:
    """Read, resolved and planned, each leads to what it names, on two cards of every board."""
    observed = node(card(board), card(board))
    made = generate(observed)
    text = file_of(made)
    for name, entries in made.items():
        assert can_be_named(name)
        document = read_document(text, configuration=name)
        if card(board).mig is None and name != DISABLED:
            with pytest.raises(DocumentError):
                resolve(document, observed)
            continue
        done = plan(resolve(document, observed), observed)
        assert done.verdict in {Verdict.APPLICABLE, Verdict.IN_SYNC, Verdict.BLOCKED}
        for gpu in done.gpus if name != DISABLED else ():
            assert present(gpu.after) == Counter(entries[0].counts)


def test_counts_are_those_of_the_default_file() -> None:
    """What the file that everybody has says for a card is what is generated for it."""
    cases: list[str] = ["a100-40gb", "a100-80gb", "a30", "h100-80gb", "b300", "gb300"]
    for board in cases:
        observed = node(card(board))
        defaults = yaml.safe_load(DEFAULTS.read_text())["mig-configs"]
        kind = f"0x{card(board).pci_device_id:08X}"
        compared = 0
        for name, (entry,) in generate(observed).items():
            for default in defaults.get(name, ()):
                filters = default.get("device-filter", [kind])
                if kind not in ([filters] if isinstance(filters, str) else filters):
                    continue
                assert default.get("mig-devices", {}) == entry.counts, name
                compared += 1
        assert compared >= 8


def test_a30_has_as_many_as_fit_whatever_the_driver_counts() -> None:
    """A30's driver reports wrong counts; its placements give the right ones."""
    cases: list[int] = [1, 9]
    for claimed in cases:
        a30 = card("a30")
        wrong = replace(a30, profiles=tuple(replace(p, max_count=claimed) for p in a30.profiles))
        assert generate(node(wrong))["all-1g.6gb"] == (GeneratedEntry(True, {"1g.6gb": 4}),)
        assert generate(node(wrong))["all-2g.12gb"] == (GeneratedEntry(True, {"2g.12gb": 2}),)


def test_several_kinds_of_cards_are_distinguished() -> None:
    """Each per-profile entry names its cards; equal counts share one; fewer come first."""
    made = generate(node(card("h100-80gb"), card("a100-80gb"), card("a100-40gb"), card("t4")))
    assert made["all-3g.40gb"] == (
        GeneratedEntry(True, {"3g.40gb": 2}, ("0x20B210DE", "0x233010DE")),
    )
    assert made["all-1g.10gb"] == (
        GeneratedEntry(True, {"1g.10gb": 4}, ("0x20B010DE",)),
        GeneratedEntry(True, {"1g.10gb": 7}, ("0x20B210DE", "0x233010DE")),
    )
    assert [entry.filters for entry in made[BALANCED]] == [
        ("0x20B010DE",),
        ("0x20B210DE",),
        ("0x233010DE",),
    ]
    assert made[DISABLED] == (GeneratedEntry(enabled=False),)
    assert made[ENABLED] == (GeneratedEntry(enabled=True),)


def test_the_text_is_a_function_of_the_cards() -> None:
    """What is on the cards, and which comes first, changes no byte, so no digest either."""
    one, other = card("h100-80gb"), card("a100-40gb")
    busy = replace(one, access=Access.LOST, instances=())
    assert file_of(generate(node(one, other))) == file_of(generate(node(other, busy)))


def test_without_profiles_nothing_is_promised() -> None:
    """A card of which no profile is known is named, and gets no configuration of its own."""
    bare = replace(card("a100-40gb"), profiles=())
    observed = node(bare, card("t4"))
    assert set(generate(observed)) == {DISABLED, ENABLED}
    assert [gpu.index for gpu in without_profiles(observed)] == [0]


def less(drop: str = "", squeeze: str = "") -> Gpu:
    """An H100 without the profiles that begin so, or with one place for each of them."""
    h100 = card("h100-80gb")
    kept = (p for p in h100.profiles if not drop or not p.name.startswith(drop))
    return replace(
        h100,
        profiles=tuple(
            replace(p, placements=p.placements[:1]) if squeeze and p.name.startswith(squeeze) else p
            for p in kept
        ),
    )


@pytest.mark.parametrize(
    "gpu",
    [less(drop="2g"), less(squeeze="1g"), replace(less(drop="7g"), profiles=less().profiles[:2])],
    ids=["no 2g at all", "room for one 1g", "nothing of 4 or 7"],
)
def test_no_balance_where_the_card_has_none(gpu: Gpu) -> None:
    """A division that lacks a part, or does not fit together, is not promised; the rest is."""
    made = generate(node(gpu))
    assert BALANCED not in made
    assert len(made) > 2
    assert BALANCED in generate(node(less()))


def test_a_profile_that_has_no_place_is_left_out() -> None:
    """The driver lists it and does not say where it can lie."""
    h100 = card("h100-80gb")
    first, *others = h100.profiles
    nowhere = replace(h100, profiles=(replace(first, placements=()), *others))
    assert f"all-{first.name}" in generate(node(h100))
    assert f"all-{first.name}" not in generate(node(nowhere))


def test_a_card_without_an_id_cannot_be_distinguished_from_others() -> None:
    """Alone it needs none; beside others no entry would mean it and only it."""
    nameless = replace(card("h100-80gb"), pci_device_id=0)
    assert "all-7g.80gb" in generate(node(nameless))
    assert "all-7g.80gb" not in generate(node(nameless, card("a30")))
