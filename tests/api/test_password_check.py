"""Basic auth by bcrypt hashes: right, wrong, and how often the costly part is done."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Iterator

import bcrypt
import pytest

from nodeagent.api.limits import Limits
from nodeagent.api.passwords import PasswordCheck, TooManyAsk

LIMITS = Limits(refusal_hold=0.0)
USERS = {"prometheus": bcrypt.hashpw(b"right:one", bcrypt.gensalt(4))}


def _basic(text: bytes) -> str:
    return "Basic " + base64.b64encode(text).decode()


HEADERS: tuple[tuple[str, bool], ...] = (
    (_basic(b"prometheus:right:one"), True),
    (_basic(b"prometheus:right:one").replace("Basic", "bAsIc"), True),
    (_basic(b"prometheus:wrong"), False),
    (_basic(b"prometheus:"), False),
    (_basic(b"nobody:right:one"), False),
    (_basic(b"prometheus"), False),
    (_basic(b"prometheus:" + b"x" * 100), False),
    (_basic(b"prometheus:right\0one"), False),
    (_basic(b"\xff:right:one"), False),
    ("Basic ?", False),
    ("Bearer x", False),
    ("", False),
)


async def test_who_is_let_in() -> None:
    """Only a known name with its own password; anything else is a no, never an error."""
    for header, accepted in HEADERS:
        check = PasswordCheck(USERS, LIMITS)
        assert await check.accepts(header) is accepted, header
        check.close()


class Hashing:
    """Replaces bcrypt: records its calls, and answers when the test allows it."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.asked.append(password)
        self.go_on.wait(30)
        return password == b"right:one" and hashed == USERS["prometheus"]


@pytest.fixture
def hashing() -> Iterator[Hashing]:
    """Its threads end with the test."""
    made = Hashing()
    yield made
    made.go_on.set()


async def test_each_password_is_hashed_once(hashing: Hashing) -> None:
    """A client that asks every few seconds costs one check, whether its password is right or not;
    a new hash of the user makes both worth a check again.
    """
    check = PasswordCheck(USERS, LIMITS, hashing)
    for _ in range(3):
        assert await check.accepts(_basic(b"prometheus:right:one"))
        assert not await check.accepts(_basic(b"prometheus:wrong"))
    assert sorted(hashing.asked) == [b"right:one", b"wrong"]
    check.users = {"prometheus": b"another"}
    assert not await check.accepts(_basic(b"prometheus:right:one"))
    assert len(hashing.asked) == 3
    check.close()


async def test_the_same_guess_from_many_is_hashed_once(hashing: Hashing) -> None:
    """Those that wait for the same password get the answer of the first."""
    check = PasswordCheck(USERS, LIMITS, hashing)
    asking = (check.accepts(_basic(b"prometheus:wrong")) for _ in range(20))
    assert not any(await asyncio.gather(*asking))
    assert len(hashing.asked) == 1
    check.close()


async def test_a_password_that_waits_too_long_is_turned_away(hashing: Hashing) -> None:
    """The agent does not keep what it cannot check in time."""
    hashing.go_on.clear()
    check = PasswordCheck(USERS, Limits(password=0.05, refusal_hold=0.0), hashing)
    asking = [asyncio.create_task(check.accepts(_basic(b"prometheus:%d" % n))) for n in range(3)]
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(one) for one in found] == [TooManyAsk] * 3
    hashing.go_on.set()
    assert await check.accepts(_basic(b"prometheus:right:one"))
    check.close()


async def test_clients_that_leave_do_not_make_room_for_more_checks(hashing: Hashing) -> None:
    """A check that has begun goes on without them: there is never more than one."""
    hashing.go_on.clear()
    check = PasswordCheck(USERS, LIMITS, hashing)
    for n in range(8):
        asking = asyncio.create_task(check.accepts(_basic(b"prometheus:%d" % n)))
        while not hashing.asked:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert hashing.asked == [b"0"]
    hashing.go_on.set()
    assert await check.accepts(_basic(b"prometheus:right:one"))
    assert hashing.asked == [b"0", b"right:one"]
    check.close()


@pytest.mark.parametrize("kind", [b"2a", b"2b", b"2y"])
async def test_hashes_of_every_kind_count(kind: bytes) -> None:
    """htpasswd writes $2y$, Python $2b$, older tools $2a$."""
    hashed = b"$" + kind + USERS["prometheus"].removeprefix(b"$2b")
    check = PasswordCheck({"p": hashed}, LIMITS)
    assert await check.accepts(_basic(b"p:right:one"))
    check.close()
