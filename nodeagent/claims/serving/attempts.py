"""What the kubelet asks for each claim: tried again while what is in its way passes by itself. And
what came of it: times, counts, refusals, and why work fails in a few words, which are codes of
refusals and labels of a metric.

A pod whose claim could not be prepared is tried again by the kubelet 60 to 90 s later. So what
passes (a device of a pod that is ending, a busy GPU, an API server that is away, a daemon that is
being started) is waited for within the kubelet's call, and only then is the answer no.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Final, TypeVar

from nodeagent.claims.model import ClaimRefused
from nodeagent.claims.outcomes import NotAdmitted
from nodeagent.claims.records import RecordNotKept
from nodeagent.claims.serving.toolkit import NoToolkitEdits
from nodeagent.errors import DriverError, NodeagentError, StillInUse, Transient, UnknownDevice
from nodeagent.files.open_directory import PathRefused
from nodeagent.plan.problems import Code, Problem
from nodeagent.signals import Signal
from nodeagent.structs import Struct, replace
from nodeagent.waiting import ends_within

FORGOTTEN_AFTER: Final = 600.0  # seconds; the kubelet repeats a call every few


class Operation(StrEnum):
    """What the kubelet asks for."""

    PREPARE = "prepare"
    RELEASE = "release"


class Attempt(Struct, frozen=True):
    """The newest attempt at a claim, where it runs or was refused. `since` is when the first of
    these attempts was begun, in seconds since 1970; `last` when the newest one ended, by a clock
    that does not jump.
    """

    namespace: str
    name: str
    operation: Operation
    since: float
    last: float
    running: bool = True
    refusal: Problem | None = None


class Ended(Struct, frozen=True):
    """An attempt that is over: how many seconds it took, and why it failed, "" where it did not."""

    operation: Operation
    seconds: float
    reason: str


class Attempts:
    """The attempts at all claims, by uid; at most one at each at a time.

    `clock` gives seconds and does not jump, `wall` seconds since 1970.
    """

    def __init__(self, *, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._clock = clock
        self._wall = wall
        self._newest: dict[str, Attempt] = {}
        self._released: dict[tuple[str, str], float] = {}  # when, by the clock
        self.ended: Signal[Ended | None] = Signal(None)

    @contextmanager
    def attempt(
        self, operation: Operation, namespace: str, name: str, uid: str
    ) -> Iterator[Callable[[NodeagentError], bool]]:
        """Around the work on a claim; gives what is to be called with what the work waits for, and
        returns whether that is news.
        """
        began, now = self._clock(), self._wall()
        before = self._newest.get(uid)
        if before is None or before.operation is not operation:
            before = Attempt(namespace, name, operation, now, began)
        self._newest[uid] = replace(before, running=True)

        def waits(error: NodeagentError) -> bool:
            known, refusal = self._newest[uid], _refusal(error)
            if known.refusal == refusal:
                return False
            self._newest[uid] = replace(known, last=self._clock(), refusal=refusal)
            return True

        try:
            yield waits
        except Exception as error:
            refusal = _refusal(error)
            self._keep(uid, replace(before, refusal=refusal))
            self._report(operation, began, refusal.code)
            raise
        except BaseException:  # the agent stops
            self._keep(uid, before)
            raise
        self._newest.pop(uid, None)
        if operation is Operation.RELEASE:
            self._released[namespace, name] = self._clock()
        self._report(operation, began, "")

    @property
    def ending(self) -> set[tuple[str, str]]:
        """Namespace and name of the claims that are being released, and of those just released,
        which the kubelet lists until it has the answer.
        """
        running = (one for one in self._newest.values() if one.running)
        ending = (one for one in running if one.operation is Operation.RELEASE)
        return {(one.namespace, one.name) for one in ending} | self._released.keys()

    @property
    def keys(self) -> set[tuple[str, str]]:
        """Namespace and name of the claims that are attempted."""
        return {(one.namespace, one.name) for one in self._newest.values()}

    @property
    def any_refused(self) -> bool:
        """Return whether a claim waits, or its release does."""
        return any(one.refusal for one in self._newest.values())

    def newest(self, recorded: Collection[str]) -> Mapping[str, Attempt]:
        """The newest attempts, by uid. A claim that is not `recorded`, and that the kubelet asks
        for no more, is forgotten, and so is what was released.
        """
        until = self._clock() - FORGOTTEN_AFTER
        self._newest = {
            uid: one
            for uid, one in self._newest.items()
            if uid in recorded or one.running or one.last >= until
        }
        self._released = {claim: at for claim, at in self._released.items() if at >= until}
        return self._newest

    def _keep(self, uid: str, ended: Attempt) -> None:
        self._newest[uid] = replace(ended, last=self._clock(), running=False)

    def _report(self, operation: Operation, began: float, reason: str) -> None:
        self.ended.publish(Ended(operation, self._clock() - began, reason))


def _refusal(error: Exception) -> Problem:
    reason = _reason_of(error)
    if isinstance(error, NodeagentError):
        return Problem.from_error(reason, error)
    return Problem(code=reason, message=f"it failed: {error!r}", remedy=REPORT_FAULT)


# --- why work fails -------------------------------------------------------------------------------


class ClaimUnread(Transient):
    """The API server does not say what the claim is."""


CDI: Final = "Cdi"
OTHER: Final = "Other"
INTERNAL: Final = "Internal"  # a fault of the agent's
REPORT_FAULT: Final = (
    "the kubelet retries; report it with the agent's log (`journalctl -u nodeagent`, in a "
    "cluster `kubectl logs` of its pod) and what `nodeagent bundle nodeagent.tar.gz` writes"
)

_REASONS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (StillInUse, Code.IN_USE.value),
    (UnknownDevice, Code.UNKNOWN_DEVICE.value),
    (DriverError, Code.DRIVER.value),
    (ClaimUnread, Code.CLUSTER.value),
    (RecordNotKept, Code.STATE_FILE.value),
    (NoToolkitEdits, CDI),
    (PathRefused, CDI),
    (ClaimRefused, Code.CLAIM_REFUSED.value),
    (NodeagentError, OTHER),
)
REASONS: Final = (*dict.fromkeys(word for _, word in _REASONS), INTERNAL)


def _reason_of(error: Exception) -> str:
    """The code of the refusal."""
    if isinstance(error, NotAdmitted):
        return error.code
    return next((word for kind, word in _REASONS if isinstance(error, kind)), INTERNAL)


# --- tried again ----------------------------------------------------------------------------------

PATIENCE: Final = 35.0  # seconds; the kubelet's call ends after 45, the agent's answer to it at 40
_FIRST_PAUSE: Final = 0.2  # seconds between two attempts, doubled each time, unless it is woken
_MAX_PAUSE: Final = 2.0

_Result = TypeVar("_Result")


class Patience:
    """For all claims of the node."""

    def __init__(self) -> None:
        self._woken: Signal[None] = Signal(None)
        self._gives_way: dict[str, bool] = {}  # by uid, of the work that runs

    def wake(self) -> None:
        """Something may have passed: try again now."""
        self._woken.publish(None)

    def give_way(self, uid: str) -> None:
        """Other work on the claim is asked for: wait no more."""
        if uid in self._gives_way:
            self._gives_way[uid] = True
            self.wake()

    async def persist(
        self, uid: str, work: Callable[[], Awaitable[_Result]], on_wait: Callable[[Transient], None]
    ) -> _Result:
        """What the work on the claim gives at last; `on_wait` gets what it waits for, each time.

        Raises what the work raises: at once what does not pass.
        """
        clock = asyncio.get_running_loop().time
        until, pause = clock() + PATIENCE, _FIRST_PAUSE
        self._gives_way[uid] = False
        try:
            while True:
                version = self._woken.version
                try:
                    return await work()
                except Transient as error:
                    if clock() + pause > until:
                        raise
                    on_wait(error)
                    await asyncio.sleep(pause / 4)  # however often something changes
                    await ends_within(pause * 3 / 4, self._woken.after(version))
                    if self._gives_way[uid]:
                        raise
                pause = min(2 * pause, _MAX_PAUSE)
        finally:
            del self._gives_way[uid]
