"""Basic auth as Prometheus' web-config has it: names with bcrypt hashes of their passwords.

A check takes as long as the hash wants it to (50 ms and more). One is made at a time, in a thread,
with a pause after a wrong password, and one address has one password in line at most: guessing is
slow. Right passwords are remembered by a keyed digest: a client that asks every few seconds costs
one check, and no guesser delays it.
"""

import asyncio
import base64
import hashlib
import hmac
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping

from nodeagent.api.limits import RequestLimits

_MAX_KEPT = 256  # passwords that were right
_MAX_LENGTH = 72  # bytes of a password that bcrypt looks at; more is refused, as Go's does


class TooManyAsk(Exception):
    """Another password from the same address is in line, or the line is too long."""


def _matches(password: bytes, hashed: bytes) -> bool:
    from bcrypt import checkpw  # most agents have no passwords

    return checkpw(password, hashed)


class PasswordCheck:
    """Says whether an Authorization header is one of the users'. Belongs to one event loop.

    `users` can be set anew at any time. `matches` takes the password and the hash.
    """

    def __init__(
        self, limits: RequestLimits, matches: Callable[[bytes, bytes], bool] = _matches
    ) -> None:
        self.users: Mapping[str, bytes] = {}
        self._matches = matches
        self._limits = limits
        self._secret = os.urandom(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()  # in the order in which they came
        self._checks: dict[str, tuple[bytes, asyncio.Task[bool]]] = {}  # by the address that asks

    async def accepts(self, header: str, peer: str = "") -> bool:
        """Whether the header proves who asks, from the address `peer`. Raises TooManyAsk."""
        given = _credentials(header)
        if given is None:
            return False
        digest = self._digest(*given)
        if digest in self._right:
            self._right.move_to_end(digest)
            return True
        if peer not in self._checks:
            if len(self._checks) >= self._limits.passwords:
                raise TooManyAsk
            task = asyncio.create_task(self._check(*given), name="check a password")
            self._checks[peer] = digest, task
            task.add_done_callback(lambda _: self._checks.pop(peer))
        asked, result = self._checks[peer]
        if asked != digest:
            raise TooManyAsk
        # A client that leaves does not end the check, nor make room for another from its address.
        return await asyncio.shield(result)

    async def close(self) -> None:
        """Check nothing any more; a hash that is being computed ends by itself."""
        results = [result for _, result in self._checks.values()]
        for result in results:
            result.cancel()
        await asyncio.gather(*results, return_exceptions=True)

    async def _check(self, name: str, password: bytes) -> bool:
        async with self._one_at_a_time:
            # Of the hash that is compared: `users` may be others when that is over.
            hashed, digest = self.users.get(name), self._digest(name, password)
            # For an unknown name another's hash, so that the answer takes as long.
            against = hashed or next(iter(self.users.values()))
            right = await asyncio.to_thread(self._matches, password, against)
            if right and hashed:
                self._right[digest] = None
                if len(self._right) > _MAX_KEPT:
                    self._right.popitem(last=False)
                return True
            await asyncio.sleep(self._limits.password_pause)
        return False

    def _digest(self, name: str, password: bytes) -> bytes:
        """The key under which a name and password are remembered; it changes with the hash."""
        text = b"\0".join((name.encode(), self.users.get(name, b""), password))
        return hmac.digest(self._secret, text, hashlib.sha256)


def _credentials(header: str) -> tuple[str, bytes] | None:
    """The name and password, as far as bcrypt takes them."""
    scheme, _, encoded = header.partition(" ")
    if scheme.casefold() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True)
        name, colon, password = text.partition(b":")
        fits = colon and len(password) <= _MAX_LENGTH and b"\0" not in password
        return (name.decode(), password) if fits else None
    except ValueError:  # no base64, no ASCII before it is decoded, or no UTF-8 after
        return None
