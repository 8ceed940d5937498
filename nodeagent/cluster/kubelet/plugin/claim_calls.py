"""The kubelet's calls for claims, joined with the work that they ask for, and the health of devices
that is sent to it. Without gRPC, and in one event loop.

The kubelet waits 45 s and then asks again; a driver may take longer. So work on a claim outlives
the call that began it: the call ends with an error before the kubelet gives up, and a later one
finds the work done, or waits for it again.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Final

import structlog

from nodeagent.claims.model import ClaimedDevice
from nodeagent.claims.reporting.device_reports import DeviceHealth
from nodeagent.claims.serving.attempts import REPORT_FAULT, Operation
from nodeagent.errors import NodeagentError
from nodeagent.signals import Signal
from nodeagent.structs import Struct
from nodeagent.waiting import ends_within

log = structlog.get_logger(__name__)

ANSWER_WITHIN: Final = 40.0  # seconds; the kubelet cancels a call after 45
HEARTBEAT: Final = 10.0  # seconds; the kubelet takes what it was not sent for 30 s as Unknown


class ClaimName(Struct, frozen=True, order=True):
    """A ResourceClaim, as the kubelet names it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} (uid {self.uid})"


Perform = Callable[[Operation, ClaimName], Awaitable[tuple[ClaimedDevice, ...]]]
"""Makes a claim's devices, or takes them down; called again for what is done already. Raises a
NodeagentError, whose text stands in the Event of the claim's pod.
"""


class _Work(Struct, frozen=True):
    operation: Operation
    claim: ClaimName
    task: asyncio.Task[tuple[ClaimedDevice, ...]]


class StillWorking(NodeagentError):
    """The call's time is over; its work goes on."""


class ClaimCalls:
    """Runs one call at most for each uid: calls of the same kind share it, others wait for its end.

    `give_way` ends work on the claim of a uid that only waits. `answer_within`: seconds that a call
    may take.
    """

    def __init__(
        self,
        perform: Perform,
        give_way: Callable[[str], None],
        *,
        answer_within: float = ANSWER_WITHIN,
    ) -> None:
        self._do = perform
        self._give_way = give_way
        self._answer_within = answer_within
        self._running: dict[str, _Work] = {}

    async def prepare(self, claim: ClaimName) -> tuple[ClaimedDevice, ...]:
        """The claim's devices. Raises NodeagentError. A call that is cancelled stops no work."""
        return await self._call(Operation.PREPARE, claim)

    async def release(self, claim: ClaimName) -> None:
        """Returns when nothing of it is left, but on lost GPUs. Otherwise as `prepare`."""
        await self._call(Operation.RELEASE, claim)

    async def close(self) -> None:
        """Cancel what still runs, and wait until it has ended."""
        tasks = [work.task for work in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, operation: Operation, claim: ClaimName) -> tuple[ClaimedDevice, ...]:
        clock = asyncio.get_running_loop().time
        until = clock() + self._answer_within
        while True:
            work = self._running.get(claim.uid) or self._start(operation, claim)
            if work.operation is not operation:
                self._give_way(claim.uid)  # its pod is over, say
            await asyncio.wait({work.task}, timeout=max(until - clock(), 0.0))
            if not work.task.done():
                seconds, what = f"{self._answer_within:g}", work.operation
                raise StillWorking.of("stillWorking", claim=claim, what=what, seconds=seconds)
            if work.operation is operation:
                return work.task.result()

    def _start(self, operation: Operation, claim: ClaimName) -> _Work:
        task = asyncio.create_task(self._perform(operation, claim))
        self._running[claim.uid] = work = _Work(operation, claim, task)
        task.add_done_callback(lambda _: self._ended(work))
        return work

    def _ended(self, work: _Work) -> None:
        del self._running[work.claim.uid]
        if not work.task.cancelled():
            work.task.exception()  # perhaps no call waits for it any more

    async def _perform(self, operation: Operation, claim: ClaimName) -> tuple[ClaimedDevice, ...]:
        try:
            return await self._do(operation, claim)
        except NodeagentError:
            raise
        except Exception as error:  # a fault of ours must not end the others' calls
            log.exception("work on a claim failed", work=operation.value, claim=str(claim))
            message = f"the {operation} of claim {claim} failed: {error!r}"
            raise NodeagentError(message, remedy=REPORT_FAULT) from error


class HealthFeed:
    """The newest list of all devices, for any number of watchers."""

    def __init__(self) -> None:
        self._devices: Signal[tuple[DeviceHealth, ...]] = Signal(())

    def publish(self, devices: Iterable[DeviceHealth]) -> None:
        """Make this the list; every device that is missing in it counts as Unknown in the end."""
        newest = tuple(devices)
        if newest != self._devices.newest:
            self._devices.publish(newest)

    async def watch(self) -> AsyncGenerator[tuple[DeviceHealth, ...], None]:
        """The list, then again at each change and each heartbeat.

        A watcher that takes its time misses lists between, never the newest, and holds up no other.
        """
        while True:
            version = self._devices.version
            yield self._devices.newest
            await ends_within(HEARTBEAT, self._devices.after(version))
