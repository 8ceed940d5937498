"""NVML's field numbers: which cards have which, and which figure of the card each one is.

What a driver reports on which generation is documented for some fields only; the rest is what the
header's comments let one expect. The value types of real drivers differ by field; here a value has
the smallest type that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pynvml

if TYPE_CHECKING:
    from nodeagent.simulation.card import Card

ALL_LINKS = 0xFFFFFFFF

_LINK_COUNTERS = ("crcFlit", "crcData", "replay", "recovery")
_PER_LINK = {161: "replay", 162: "recovery", 163: "crcFlit"}  # scopeId is the link
_ECC = {
    3: "ecc.corrected.volatile",
    4: "ecc.uncorrected.volatile",
    5: "ecc.corrected.aggregate",
    6: "ecc.uncorrected.aggregate",
}
_NAMED = {
    1: "ecc.mode",
    2: "ecc.pending",
    29: "pages.singleBit",
    30: "pages.doubleBit",
    31: "pages.pending",
    82: "temperature.memory",
    83: "energy",
    94: "pcie.replays",
    142: "rows.correctable",
    143: "rows.uncorrectable",
    144: "rows.pending",
    145: "rows.failed",
    186: "power.usage",
    197: "pcie.sent",
    198: "pcie.received",
    230: "recovery",
    **_ECC,
}


def _legacy_link_fields() -> dict[int, tuple[str, int]]:
    """Counter and link of fields 32 to 59 and 96 to 119; link -1 is the sum of all."""
    found: dict[int, tuple[str, int]] = {}
    for number, counter in enumerate(_LINK_COUNTERS):
        for link in range(6):
            found[32 + 7 * number + link] = (counter, link)
            found[96 + 6 * number + link] = (counter, 6 + link)
        found[38 + 7 * number] = (counter, -1)
    return found


LEGACY_LINKS = _legacy_link_fields()


def _has_links(card: Card) -> bool:
    """NVLinks are not reported while MIG is on."""
    return bool(card.board.nvlinks) and not card.state.mig


# Which cards have which fields, by their compute capability and more; of two rows the later holds.
_ROWS: tuple[tuple[Iterable[int], Callable[[Card, tuple[int, int]], bool]], ...] = (
    ((*range(1, 7), *range(74, 84), 94, *range(269, 272)), lambda _card, _: True),
    ((29, 30, 31), lambda _, version: version < (8, 0)),
    (LEGACY_LINKS, lambda card, version: _has_links(card) and version < (10, 0)),
    # HBM has a sensor of its own; the boards with GDDR memory are those of 7.5, 8.9 and 12.0.
    ((82,), lambda _, version: version not in {(7, 5), (8, 9), (12, 0)}),
    ((138, 139, *range(160, 164), 165), lambda card, _: _has_links(card)),
    (range(142, 146), lambda card, version: version >= (8, 0) and not card.state.instances),
    ((*range(170, 173), *range(231, 235)), lambda card, _: card.board.has_grace),
    ((*range(173, 184), 185, 186, 197, 198, 230), lambda _, version: version >= (8, 0)),
    (
        (*range(201, 205), *range(206, 216), *range(219, 223), *range(235, 251)),
        lambda card, version: _has_links(card) and version >= (10, 0),
    ),
    ((*range(251, 269), 307), lambda _, version: version >= (10, 0)),
)
_AVAILABLE = {number: available for numbers, available in _ROWS for number in numbers}
_OF_A_LINK = frozenset({138, 139, 161, 162, 163, 165, *range(201, 205), *range(206, 216)}) | {
    *range(219, 223),
    *range(235, 251),
}
_STATE = pynvml.NVML_FI_DEV_NVLINK_GET_STATE


def is_reported(card: Card, number: int) -> bool:
    """Whether this card has the field at all."""
    available = _AVAILABLE.get(number)
    return available is not None and available(card, card.board.compute_capability)


def link_fits(card: Card, number: int, scope: int) -> bool:
    """Whether `scope` is a link of the card where the field is one of links."""
    if number in LEGACY_LINKS:
        return LEGACY_LINKS[number][1] < card.board.nvlinks
    if number not in _OF_A_LINK:
        return True
    return scope < card.board.nvlinks or (scope == ALL_LINKS and number not in {*_PER_LINK, _STATE})


def value_of(card: Card, number: int, scope: int) -> int | float:
    """The value of the field on a card that has it."""
    sensors = card.sensors
    own = f"field.{number}.{scope}" if number in _OF_A_LINK else f"field.{number}"
    figure = sensors.figure(own)
    if figure is not None:
        return figure
    if number in _PER_LINK:
        return sensors.link_errors(_PER_LINK[number], scope)
    if number in LEGACY_LINKS:
        counter, link = LEGACY_LINKS[number]
        return sensors.link_errors(counter, link)
    if number in {138, 139}:
        return sensors.link_kib(sent=number == 138, link=scope)
    if number == _STATE:
        return sensors.integer(f"link.{scope}.up", int(card.board.nvlink_peer != "none"))
    return sensors.value(_NAMED[number]) if number in _NAMED else 0
