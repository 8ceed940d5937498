"""Basic auth as Prometheus' web-config has it: names with bcrypt hashes of their passwords.

A check takes as long as the hash wants it to (50 ms and more). One is made at a time, in a thread,
and one address has one password in line at most; a wrong one is answered after a pause. So guessing
is slow and costs half a core at most. Right passwords are remembered by a keyed digest: a client
that asks every few seconds costs one check, and no guesser delays it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from nodeagent.api.limits import RequestLimits

_MAX_KEPT = 256  # passwords that were right
_MAX_LENGTH = 72  # bytes of a password that bcrypt looks at; more is refused, as Go's does


class TooManyAsk(Exception):
    """Another password from the same address is in line, or the line is too long."""


class _Check(NamedTuple):
    digest: bytes
    result: asyncio.Task[bool]


class PasswordCheck:
    """Says whether an Authorization header is one of the users'. Belongs to one event loop.

    `users` can be set anew at any time. `compare` is bcrypt's checkpw, which takes the password and
    the hash; raises ImportError where the package is missing.
    """

    def __init__(
        self,
        users: Mapping[str, bytes],
        limits: RequestLimits,
        compare: Callable[[bytes, bytes], bool] | None = None,
    ) -> None:
        if compare is None:
            from bcrypt import checkpw

            compare = checkpw
        self.users = users
        self._compare = compare
        self._limits = limits
        self._secret = os.urandom(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()  # in the order in which they came
        self._checks: dict[str, _Check] = {}  # by the address that asks

    async def accepts(self, header: str, peer: str = "") -> bool:
        """Whether the header proves who asks, from the address `peer`. Raises TooManyAsk."""
        given = _credentials(header)
        if given is None:
            return False
        digest = self._digest(*given)
        if digest in self._right:
            self._right.move_to_end(digest)
            return True
        check = self._checks.get(peer)
        if check is None:
            if len(self._checks) >= self._limits.passwords:
                raise TooManyAsk
            task = asyncio.create_task(self._check(*given), name="check a password")
            check = self._checks[peer] = _Check(digest, task)
            task.add_done_callback(lambda _: self._checks.pop(peer))
        elif check.digest != digest:
            raise TooManyAsk
        # A client that leaves does not end the check, nor make room for another from its address.
        return await asyncio.shield(check.result)

    async def close(self) -> None:
        """Check nothing any more; a hash that is being computed ends by itself."""
        results = [check.result for check in self._checks.values()]
        for result in results:
            result.cancel()
        await asyncio.gather(*results, return_exceptions=True)

    async def _check(self, name: str, password: bytes) -> bool:
        async with self._one_at_a_time:
            # Of the hash that is compared: `users` may be others when that is over.
            hashed, digest = self.users.get(name), self._digest(name, password)
            right, cost = await asyncio.to_thread(self._compared, hashed, password)
            if right:
                self._right[digest] = None
                if len(self._right) > _MAX_KEPT:
                    self._right.popitem(last=False)
            else:
                await asyncio.sleep(cost)
        if not right:
            await asyncio.sleep(self._limits.password_pause)
        return right

    def _compared(self, hashed: bytes | None, password: bytes) -> tuple[bool, float]:
        """Whether the password is right, and the processor's seconds that the check took."""
        if len(password) > _MAX_LENGTH or b"\0" in password:
            return False, 0.0
        began = time.thread_time()
        # For an unknown name another's hash, so that the answer takes as long.
        right = self._compare(password, hashed or next(iter(self.users.values())))
        return right and hashed is not None, time.thread_time() - began

    def _digest(self, name: str, password: bytes) -> bytes:
        """The key under which a name and password are remembered; it changes with the hash."""
        text = b"\0".join((name.encode(), self.users.get(name, b""), password))
        return hmac.digest(self._secret, text, hashlib.sha256)


def _credentials(header: str) -> tuple[str, bytes] | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.casefold() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True)
        name, colon, password = text.partition(b":")
        return (name.decode(), password) if colon else None
    except ValueError:  # no base64, no ASCII before it is decoded, or no UTF-8 after
        return None
