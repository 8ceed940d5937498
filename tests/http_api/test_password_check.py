"""Basic auth by bcrypt hashes: right, wrong, and how often the costly part is done."""

from __future__ import annotations

import asyncio
import base64
import threading

import bcrypt
import pytest

from nodeagent.http_api import password_check
from nodeagent.http_api.password_check import PasswordCheck, TooManyAsk

USERS = {"prometheus": bcrypt.hashpw(b"right:one", bcrypt.gensalt(4))}


def _basic(text: bytes) -> str:
    return "Basic " + base64.b64encode(text).decode()


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
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
    ],
)
async def test_who_is_let_in(header: str, accepted: bool) -> None:
    """Only a known name with its own password; anything else is a no, never an error."""
    assert await PasswordCheck(USERS).accepts(header) is accepted


async def test_what_was_right_is_remembered_and_what_was_wrong_is_not() -> None:
    """A scrape every few seconds computes no hash; guesses do not fill the memory."""
    check = PasswordCheck(USERS)
    for n in range(3):
        assert not await check.accepts(_basic(b"prometheus:%d" % n))
    assert not check._known
    assert await check.accepts(_basic(b"prometheus:right:one"))
    check._right = lambda *_: pytest.fail("it was computed again")
    assert await check.accepts(_basic(b"prometheus:right:one"))


async def test_guessing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many wait at most; who comes then is turned away at once."""
    monkeypatch.setattr(password_check, "_MOST_WAITING", 2)
    check = PasswordCheck(USERS)
    asking = [asyncio.create_task(check.accepts(_basic(b"prometheus:%d" % n))) for n in range(3)]
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(one) for one in found] == [bool, bool, TooManyAsk]


async def test_who_guesses_keeps_nobody_else_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """From one address only so many wait; another is let in meanwhile."""
    monkeypatch.setattr(password_check, "_MOST_OF_ONE", 2)
    check = PasswordCheck(USERS)
    guesses = (check.accepts(_basic(b"prometheus:%d" % n), "192.0.2.1") for n in range(40))
    right = check.accepts(_basic(b"prometheus:right:one"), "192.0.2.2")
    *refused, let_in = await asyncio.gather(*guesses, right, return_exceptions=True)
    assert sum(isinstance(one, TooManyAsk) for one in refused) == 38
    assert let_in is True
    assert not check._waiting


async def test_clients_that_leave_do_not_make_room_for_more_checks() -> None:
    """A check that has begun goes on without them: there are never more than two."""
    check, go_on, begun = PasswordCheck(USERS), threading.Event(), list[bytes]()

    def right(password: bytes, hashed_password: bytes) -> bool:
        assert hashed_password == USERS["prometheus"]
        begun.append(password)
        return go_on.wait(5)

    check._right = right
    try:
        for n in range(8):
            asking = asyncio.create_task(check.accepts(_basic(b"prometheus:%d" % n)))
            await asyncio.sleep(0.02)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        assert len(begun) == 2
    finally:
        go_on.set()


@pytest.mark.parametrize("kind", [b"2a", b"2b", b"2y"])
async def test_hashes_of_every_kind_count(kind: bytes) -> None:
    """htpasswd writes $2y$, Python $2b$, older tools $2a$."""
    hashed = b"$" + kind + USERS["prometheus"].removeprefix(b"$2b")
    assert await PasswordCheck({"p": hashed}).accepts(_basic(b"p:right:one"))
