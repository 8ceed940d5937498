"""Basic auth by bcrypt hashes: right, wrong, and how often the costly part is done."""

from __future__ import annotations

import asyncio
import base64

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


@pytest.mark.parametrize("kind", [b"2a", b"2b", b"2y"])
async def test_hashes_of_every_kind_count(kind: bytes) -> None:
    """htpasswd writes $2y$, Python $2b$, older tools $2a$."""
    hashed = USERS["prometheus"].replace(b"2b", kind)
    assert await PasswordCheck({"p": hashed}).accepts(_basic(b"p:right:one"))
