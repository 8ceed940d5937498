import asyncio

import structlog

from nodeagent.api.limits import ConnectionSlots, Reason, RequestSlot, peer_of
from tests.api.serving import Api, api
from tests.machine_load import stretched

LOCAL = (
    *("localhost", "localhost:9470", "LOCALHOST.:1", "127.0.0.1:80", "[::1]:9470"),
    *("[0:0:0:0:0:0:0:1]", "localhost:"),
)
FOREIGN = (
    *("node-a.example", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("[fd00::1]", "[::1]evil:80", "[::1", "::1", "[localhost]", "127.0.0.1:evil"),
    *("127.0.0.1:80@evil.example", "localhost/evil", "localhost..", ""),
)


async def test_foreign_hosts_are_refused() -> None:
    async with api() as served:
        found = {h: (await served.get("/v1/status", Host=h))[0] for h in (*LOCAL, *FOREIGN)}
    assert found == dict.fromkeys(LOCAL, 200) | dict.fromkeys(FOREIGN, 403)


async def test_the_address_that_is_listened_on_is_no_foreign_host() -> None:
    async with api(host="127.0.0.2") as served:
        assert (await served.get("/healthz"))[0] == 200
        assert (await served.get("/healthz", Host="127.0.0.3"))[0] == 403


async def test_each_reason_is_logged() -> None:
    with structlog.testing.capture_logs() as lines:
        async with api() as served:
            for _ in range(3):
                await served.get("/healthz", Host="evil.example")
            await raw(served, b"nonsense\r\n\r\n")
            served.refusals.add("metrics", Reason.HOST, peer="10.0.0.1")
    assert [(line["listener"], line["reason"], line["count"]) for line in lines] == [
        ("api", "host", 1),
        ("api", "malformed", 1),
        ("metrics", "host", 1),
    ]


async def test_two_hosts_are_refused() -> None:
    async with api() as served:
        answer = await raw(
            served, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n"
        )
        assert answer.split()[1] in (b"400", b"403")


async def raw(served: Api, request: bytes) -> bytes:
    """The first bytes of the answer to exactly these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.base.rsplit(":")[-1]))
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(4000), stretched(30))
    writer.close()
    await writer.wait_closed()
    return answer


async def test_headers_say_nothing_of_versions_and_forbid_what_is_not_needed() -> None:
    async with api() as served:
        for path in ("/", "/v1/status", "/nothing"):
            async with served.session.get(served.base + path) as answer:
                assert answer.headers["Server"] == "nodeagent"
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


async def test_even_garbage_learns_nothing_of_versions() -> None:
    async with api() as served:
        answer = await raw(served, b"\x16\x03\x01 garbage\r\n\r\n")
        assert answer.split()[1] == b"400"
        assert b"aiohttp" not in answer


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
    clients = Clients()
    assert clients.connect("b", "b0")
    clients.busy("a")
    for n in range(3):
        clients.connect("a", f"a{n}")
    clients.busy("c")
    assert clients.connect("d")
    assert clients.ended == ["a0"]


def test_a_connection_that_was_answered_is_the_last_to_go() -> None:
    clients = Clients()
    first = clients.connect("a", "first")
    assert first is not None
    for n in range(3):
        clients.connect("a", f"a{n}")
    clients.slots.waits(first)
    clients.connect("a")
    assert clients.ended == ["a0"]


def test_without_anyone_who_waits_there_is_no_room() -> None:
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
    for address, peer in ADDRESSES:
        assert peer_of(address) == peer, address
