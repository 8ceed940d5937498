"""What the reconciliation loop shares with the rest of the agent: wake-ups and heartbeats."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import structlog

from nodeagent.pacing import Allowance
from nodeagent.plan.plan import GpuOutcome
from nodeagent.signals import Signal
from nodeagent.waiting import ends_within

log = structlog.get_logger(__name__)

_STOP_TIMEOUT = 1.0  # seconds that an observation may still take once the agent stops
SETTLE_INTERVAL: Final = 0.25  # seconds in which changes are taken together
_WAKE_INTERVAL = 2.0  # seconds between two rounds that tenants cause, after some at once
_WAKE_BURST = 10


class Abandoned(Exception):
    """The agent stops, and did not wait for the end of an observation."""


class LoopControl:
    """What wakes, halts and stops the reconciliation loop.

    Created before everything that may wake the loop, and therefore before the loop itself.
    """

    def __init__(self) -> None:
        self.halt = asyncio.Event()  # begin no further step
        self.offered = asyncio.Event()  # the plan's source has reported, or the agent stops
        self.settled = asyncio.Event()  # the first round is over, however it ended
        self.stopping = False
        self.looked_at = math.inf  # when the node was observed last, or that was tried
        self._look_due = True
        self._wake = asyncio.Event()
        self._allowance = Allowance(interval=_WAKE_INTERVAL, burst=_WAKE_BURST)
        self._due: asyncio.TimerHandle | None = None
        self._settling: asyncio.TimerHandle | None = None
        self._observing: asyncio.Timeout | None = None

    def wake(self, reason: str) -> None:
        """Something may have changed: have the loop observe the node again soon."""
        self._look_due = True
        self.report(reason)

    def report(self, reason: str) -> None:
        """Have the loop report again soon. No GPU is looked at for that, unless something is to be
        done.
        """
        log.debug("woken", reason=reason)
        self._wake.set()

    def follow_up(self, outcome: GpuOutcome | None) -> None:
        """Have the loop report what was read back of a GPU after steps for a claim, once for many
        of them; the node is observed where nothing was read back, or the driver restarted.
        """
        self._look_due |= outcome is None or outcome.restarted_driver
        if self._settling is None:

            def now() -> None:
                self._settling = None
                self.report("a GPU was changed for a claim")

            self._settling = asyncio.get_running_loop().call_later(SETTLE_INTERVAL, now)

    def wake_in_turn(self, reason: str) -> None:
        """Wake the loop for what tenants do, at a limited rate: a round has calls to every GPU."""
        loop = asyncio.get_running_loop()
        due = self._allowance.next_at()
        if self._due is not None:
            return
        if loop.time() >= due:
            self._wake_now(reason)
        else:
            self._due = loop.call_at(due, self._wake_now, reason)

    def _wake_now(self, reason: str) -> None:
        self._due = None
        self._allowance.take(asyncio.get_running_loop().time())
        self.wake(reason)

    def follow(self, signal: Signal[Any], reason: str) -> None:
        """Have each value that is published wake the loop."""
        signal.subscribe(lambda _: self.wake(reason))

    def refresh_if_older_than(self, seconds: float) -> None:
        """Have the loop observe the node again unless it did that within so many seconds."""
        if asyncio.get_running_loop().time() - self.looked_at > seconds:
            self.wake("the status is requested")

    def stop(self) -> None:
        """Finish the running steps and leave the rest to the next start; hurry an observation."""
        self.stopping = True
        for timer in (self._due, self._settling):
            if timer is not None:
                timer.cancel()
        if self._observing:
            _hurry(self._observing)
        self.halt.set()
        self._wake.set()
        self.offered.set()

    def begin_round(self) -> bool:
        """Begin a round; what wakes the loop from now on is for the next one. Returns whether it is
        to observe the node.
        """
        self._wake.clear()
        self.halt.clear()
        look, self._look_due = self._look_due, False
        if look:
            self.looked_at = asyncio.get_running_loop().time()
        return look

    def resume(self) -> None:
        """Steps may be begun again, unless the agent stops."""
        if not self.stopping:
            self.halt.clear()

    def end_round(self) -> None:
        self.settled.set()

    async def rest(self, seconds: float) -> None:
        """Wait until something wakes the loop, at most so long."""
        if not await ends_within(seconds, self._wake.wait()):
            self._look_due = True

    @asynccontextmanager
    async def abandoned_at_stop(self) -> AsyncIterator[None]:
        """Enclose an observation, which changes nothing, so that a stop does not wait for a driver
        that hangs. Raises Abandoned when it stops; one observation at a time.
        """
        try:
            async with asyncio.timeout(None) as self._observing:
                if self.stopping:
                    _hurry(self._observing)
                yield
        except TimeoutError as error:
            if not self.stopping:  # of another clock: a fault, and no reason to look again at once
                raise
            raise Abandoned from error
        finally:
            self._observing = None


class Heartbeats:
    """Signs of life of the agent's loops.

    A loop announces with each beat within how many seconds the next will follow: a reconciliation
    may take minutes, a loop that waits announces until when it waits. `clock` gives seconds, such
    as the event loop's time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}

    def beat(self, loop: str, *, within: float) -> None:
        self._due[loop] = self._clock() + within

    def forget(self, loop: str) -> None:
        self._due.pop(loop, None)

    def overdue(self) -> tuple[str, ...]:
        """A sentence for each loop that did not beat in time; empty while all is well."""
        now = self._clock()
        return tuple(
            f"the {loop} has not reported for {now - due:.0f} s longer than it should take"
            for loop, due in self._due.items()
            if now > due
        )


def _hurry(observing: asyncio.Timeout) -> None:
    observing.reschedule(asyncio.get_running_loop().time() + _STOP_TIMEOUT)
