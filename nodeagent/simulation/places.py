"""Where something is on a simulated node, and the names by which people say that."""

from collections.abc import Sequence
from typing import NamedTuple

from nodeagent.errors import UsageError
from nodeagent.simulation.card import Card
from nodeagent.simulation.state import WHOLE, Process


class Place(NamedTuple):
    """A GPU, or a MIG device on it by the ids of its instances."""

    card: Card
    instance: int | None = None
    compute: int | None = None

    @property
    def serial(self) -> int:
        """Of the GPU instance."""
        return WHOLE if self.instance is None else self.card.instance(self.instance).serial

    def holds(self, process: Process) -> bool:
        """Whether a process of the card is on this device; on a GPU are those of its parts too."""
        mine = (process.instance, process.compute) == (self.instance, self.compute)
        return mine or self.instance is None


def card_at(cards: Sequence[Card], index: int) -> Card:
    """Raises UsageError."""
    if not 0 <= index < len(cards):
        raise UsageError(f"the simulated node has no GPU {index}", remedy=f"0 to {len(cards) - 1}")
    return cards[index]


def place_of(cards: Sequence[Card], device: str | int) -> Place:
    """A GPU by index, UUID or PCI address, a MIG device by UUID or as `GPU/GI/CI`; raises
    UsageError.
    """
    text = str(device).strip()
    if text.isascii() and text.isdigit():
        return Place(card_at(cards, int(text)))
    for card in cards:
        if card.identity.answers_to(text):
            return Place(card)
        for instance, compute in card.mig_devices():
            place = f"{card.index}/{instance.id}/{compute.id}"
            if text == place or text.upper() == card.mig_uuid(instance, compute).upper():
                return Place(card, instance.id, compute.id)
    raise UsageError(
        f"the simulated node has no device {text!r}",
        remedy="an index, a PCI address, the UUID of a GPU or a MIG device, or GPU/GI/CI",
    )
