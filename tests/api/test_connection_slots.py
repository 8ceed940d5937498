"""Which connection ends for a new one, without sockets."""

from __future__ import annotations

from nodeagent.api.limits import ConnectionSlots, RequestSlot, peer_of


class Clients:
    """Connections of a listener with room for 6, for 4 of one peer, and which of them ended."""

    def __init__(self) -> None:
        self.slots = ConnectionSlots(6, 4)
        self.ended: list[str] = []

    def connect(self, peer: str, name: str = "") -> RequestSlot | None:
        slot, _ = self.slots.enter(peer, lambda: self.ended.append(name or peer))
        return slot

    def busy(self, peer: str) -> None:
        slot = self.connect(peer)
        assert slot is not None
        slot.waiting = False


def test_a_peer_pays_for_its_own_connections() -> None:
    """The fifth of one peer ends its own oldest one, though there is room for other peers."""
    clients = Clients()
    for n in range(5):
        assert clients.connect("a", f"a{n}")
    assert clients.ended == ["a0"]
    assert clients.connect("b")
    assert clients.ended == ["a0"]


def test_a_full_listener_takes_from_the_peer_with_most() -> None:
    """It ends neither the connection of a peer with one nor one that is being answered."""
    clients = Clients()
    assert clients.connect("b", "b0")
    clients.busy("a")
    for n in range(3):
        clients.connect("a", f"a{n}")
    clients.busy("c")
    assert clients.connect("d")
    assert clients.ended == ["a0"]


def test_a_connection_that_was_answered_is_the_last_to_go() -> None:
    """The time it has waited counts, not its age."""
    clients = Clients()
    first = clients.connect("a", "first")
    assert first is not None
    for n in range(3):
        clients.connect("a", f"a{n}")
    clients.slots.waits(first)
    clients.connect("a")
    assert clients.ended == ["a0"]


def test_without_anyone_who_waits_there_is_no_room() -> None:
    """Nothing that is being answered is ended; when one leaves, there is room again."""
    clients = Clients()
    for peer in ("a", "a", "b", "b", "c"):
        clients.busy(peer)
    last = clients.connect("c")
    assert last is not None
    last.waiting = False
    assert clients.connect("d") is None
    clients.slots.leave(last)
    clients.slots.leave(last)  # an end that is noticed twice counts once
    assert clients.connect("d")
    assert not clients.ended


def test_after_its_end_a_listener_takes_no_one() -> None:
    """Connections that were accepted in the last moment are refused."""
    clients = Clients()
    clients.connect("a")
    clients.slots.closed = True
    assert clients.connect("b") is None


ADDRESSES: tuple[tuple[object, str], ...] = (
    (("192.0.2.7", 1), "192.0.2.7"),
    (("::ffff:192.0.2.7", 1, 0, 0), "192.0.2.7"),
    (("127.0.0.1", 1), "loopback"),
    (("127.3.2.1", 1), "loopback"),
    (("::1", 1, 0, 0), "loopback"),
    (("::ffff:127.0.0.9", 1, 0, 0), "loopback"),
    (("2001:db8:1:2:3:4:5:6", 1, 0, 0), "2001:db8:1:2::/64"),
    (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
    ("", ""),
    (b"", ""),
)


def test_whom_an_address_counts_for() -> None:
    """Addresses that one client can choose among are one peer."""
    for address, peer in ADDRESSES:
        assert peer_of(address) == peer, address
