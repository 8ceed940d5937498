"""Basic auth as Prometheus' web-config has it: names with bcrypt hashes of their passwords.

A check takes as long as the hash wants it to (0.1 s and more), so it runs in one of two threads of
its own, and what was right once is remembered by a digest until the hashes change. That there are
but two holds also where clients leave before the answer: a check that has begun cannot be ended.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
from collections import Counter, OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

_MOST_KEPT = 256
_MOST_AT_ONCE = 2
_MOST_WAITING = 32
_MOST_OF_ONE = 8  # of them from one address, so that who guesses keeps nobody else out
_LONGEST = 72  # bytes of a password that bcrypt looks at; more is refused, as Go's does


class TooManyAsk(Exception):
    """Too many passwords wait to be checked."""


class PasswordCheck:
    """Says whether an Authorization header is one of the users'. Belongs to one event loop.

    There has to be at least one user.
    """

    def __init__(self, users: Mapping[str, bytes]) -> None:
        # Here and not at the first request: one who cannot check does not listen.
        import bcrypt

        self._right = bcrypt.checkpw
        self._users = dict(users)
        # Who gives an unknown name must not learn that from a quicker answer.
        self._of_nobody = next(iter(users.values()))
        self._secret = os.urandom(32)
        self._known: OrderedDict[bytes, bool] = OrderedDict()
        self._threads = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="password")
        self._waiting: Counter[str] = Counter()  # by where they come from

    async def accepts(self, header: str, peer: str = "") -> bool:
        """Whether the header proves who asks, from the address `peer`; raises TooManyAsk."""
        given = _credentials(header)
        if given is None:
            return False
        name, password = given
        mark = hmac.digest(self._secret, name.encode() + b"\0" + password, hashlib.sha256)
        if mark in self._known:
            self._known.move_to_end(mark)
            return self._known[mark]
        if self._waiting[peer] >= _MOST_OF_ONE or self._waiting.total() >= _MOST_WAITING:
            raise TooManyAsk
        self._waiting[peer] += 1
        try:
            loop = asyncio.get_running_loop()
            right = await loop.run_in_executor(self._threads, self._compare, name, password)
        finally:
            self._waiting[peer] -= 1
            self._waiting = +self._waiting  # without those of whom none waits
        if right:  # what is wrong is not remembered: there is no end of it
            self._known[mark] = True
            while len(self._known) > _MOST_KEPT:
                self._known.popitem(last=False)
        return right

    def close(self) -> None:
        """End the threads when what they are at is done; nothing more can be checked."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compare(self, name: str, password: bytes) -> bool:
        hashed = self._users.get(name)
        if len(password) > _LONGEST or b"\0" in password:
            return False
        return self._right(password, hashed or self._of_nobody) and hashed is not None


def _credentials(header: str) -> tuple[str, bytes] | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.casefold() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True)
        name, colon, password = text.partition(b":")
        return (name.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError):
        return None
