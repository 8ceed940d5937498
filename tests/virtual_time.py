"""An event loop whose clock stands still while there is work and skips idle time.

A rule about minutes takes milliseconds, and a busy machine cannot break it: time passes only when
every task waits. Sockets are real; what another task of the loop wrote arrives before any timer.
"""

import asyncio
import selectors
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from struct import unpack_from
from typing import Any

# Real seconds to wait before time is skipped, for what was written to a socket and has not arrived.
_ARRIVING = 0.001
_TRIES = 200  # so often again, while it is known to be under way
# In struct tcp_info of linux/tcp.h: bytes that were received, and sent with those sent again.
_RECEIVED, _SENT, _RESENT, _INFO_SIZE = 128, 200, 208, 216
_SYN_SENT = 2


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Begins at 1000 s. Threads of executors count as work; so does nothing outside the loop."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._at_work = 0
        super().__init__(_Skipping(self))

    def time(self) -> float:
        return self._now

    def skip(self, seconds: float) -> None:
        self._now += seconds

    @property
    def is_waiting(self) -> bool:
        return self._at_work == 0

    def run_in_executor(  # type: ignore[override]  # the stub's type variables tell nothing here
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self._at_work += 1
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: asyncio.Future[Any]) -> None:
        self._at_work -= 1


class _Skipping(selectors.DefaultSelector):
    """Looks at the sockets; where nothing happens there, the time until the next timer is over."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        if timeout is None or not self._loop.is_waiting:
            return super().select(None)
        found = super().select(_ARRIVING)
        for _ in range(_TRIES):
            if found or not is_under_way(key.fd for key in self.get_map().values()):
                break
            found = super().select(_ARRIVING)
        if not found:
            self._loop.skip(timeout)
        return found


def is_under_way(descriptors: Iterable[int]) -> bool:
    """Whether one of these sockets wrote what another one of them has not got yet.

    A busy kernel may take longer than `_ARRIVING` to carry a packet from one end of a TCP
    connection to the other. What a closed socket wrote last is not seen.
    """
    sent: dict[tuple[object, object], int] = {}
    received: dict[tuple[object, object], int] = {}
    for descriptor in descriptors:
        try:
            one = socket.socket(fileno=descriptor)
        except OSError:  # a pipe, say
            continue
        try:
            if one.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
            if info[0] == _SYN_SENT:
                return True
            ends = one.getsockname(), one.getpeername()
            sent[ends] = unpack_from("Q", info, _SENT)[0] - unpack_from("Q", info, _RESENT)[0]
            received[ends[::-1]] = unpack_from("Q", info, _RECEIVED)[0]
        except OSError:  # it listens, or is reset
            continue
        finally:
            one.detach()
    return any(received.get(ends, count) < count for ends, count in sent.items())
