"""What distinguishes a card from every other: UUIDs, serial number, PCI address.

Made from the board and the index alone, so a node of the same boards is always the same node.
"""

from __future__ import annotations

import hashlib

_BUSES_A_DOMAIN = 16


class Identity:
    """The identity of the card at one index. `pdi` is the board's own 64-bit number."""

    def __init__(self, board: str, index: int, number: int = 0) -> None:
        text = f"{board}/{index}" + (f"/{number}" if number else "")
        self._made_of = board, index, number
        self.uuid = f"GPU-{_version5(text)}"
        self.pdi = int.from_bytes(_digest(text)[-8:], "big")
        self.serial_number = str(1_320_000_000_000 + self.pdi % 9_999_999_999)
        self.pci_domain, place = divmod(index, _BUSES_A_DOMAIN)
        self.pci_bus = 0x1A + 0x0D * place
        root = 0x17 + 0x1A * (place // 2)  # of two cards
        self.pcie_root = f"pci{self.pci_domain:04x}:{root:02x}"
        self.pci_bus_id = f"{self.pci_domain:08X}:{self.pci_bus:02X}:00.0"
        self._mig_uuids: dict[tuple[int, int, int], str] = {}

    def successor(self) -> Identity:
        """The card that comes to the same place after this one."""
        board, index, number = self._made_of
        return Identity(board, index, number + 1)

    def answers_to(self, text: str) -> bool:
        """Whether this is its UUID or its PCI address, with a domain of 8 or 4 digits."""
        return text.upper() in {self.uuid.upper(), self.pci_bus_id, self.pci_bus_id[4:]}

    def mig_uuid(self, instance: int, compute: int, fresh: int) -> str:
        """Of a place on this card; `fresh` sets apart what was there at another time."""
        key = (instance, compute, fresh)
        if key not in self._mig_uuids:
            place = f"SMC/{self.pdi:016x}/{instance}/{compute}/{fresh}"
            self._mig_uuids[key] = f"MIG-{_version5(place)}"
        return self._mig_uuids[key]


def _digest(text: str) -> bytes:
    return hashlib.sha1(f"nodeagent.io/simulation/{text}".encode(), usedforsecurity=False).digest()


def _version5(text: str) -> str:
    """A UUID of version 5; the module `uuid` would do, but is slow to load."""
    digest = bytearray(_digest(text)[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    shown = digest.hex()
    return "-".join((shown[:8], shown[8:12], shown[12:16], shown[16:20], shown[20:]))
