"""What the kubelet asks for each claim: what came of it, and what is waited for within its call."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from nodeagent.claims.model import ClaimedDevice, ClaimHeldUp, ClaimRefused
from nodeagent.claims.outcomes import NotAdmitted
from nodeagent.claims.serving.attempts import (
    FORGOTTEN_AFTER,
    PATIENCE,
    Attempt,
    Attempts,
    Ended,
    Operation,
    Patience,
)
from nodeagent.cluster.kubelet.plugin.claim_calls import ANSWER_WITHIN, ClaimCalls, ClaimName
from nodeagent.errors import NodeagentError, StillInUse
from nodeagent.plan.problems import Code, Problem
from tests.claims.samples import record
from tests.cluster.kubelet.plugin.rig import CLAIM, now

pytestmark = pytest.mark.virtual_time
UID = "11111111"


class Clocked:
    """Attempts at one claim, by a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.jumped = 0.0  # seconds by which the time of day was put forward, or back
        self.ended: list[Ended] = []
        self.attempts = Attempts(clock=lambda: self.now - 900, wall=lambda: self.now + self.jumped)
        self.attempts.ended.subscribe(lambda ended: self.ended.append(ended) if ended else None)

    def work(
        self, operation: Operation, error: BaseException | None = None, *, seconds: float = 2.0
    ) -> None:
        with self.attempts.attempt(operation, "team", "trainer", UID):
            self.now += seconds
            if error is not None:
                raise error

    def fail(self, operation: Operation, error: BaseException) -> None:
        with pytest.raises(type(error)):
            self.work(operation, error)

    @property
    def newest(self) -> Attempt:
        return self.attempts.newest(())[UID]


def test_a_claim_waits_since_its_first_attempt() -> None:
    claim = Clocked()
    claim.fail(Operation.PREPARE, NodeagentError("the API server is away", remedy="wait"))
    claim.now += 10
    claim.fail(Operation.PREPARE, StillInUse("pid 4711 uses it", remedy="end it"))
    waiting = claim.newest
    assert claim.attempts.any_refused
    assert (waiting.since, waiting.last, waiting.running) == (1000, 114, False)
    assert waiting.refusal is not None
    assert (waiting.refusal.code, waiting.refusal.message, waiting.refusal.remedy) == (
        "InUse",
        "pid 4711 uses it",
        "end it",
    )
    with claim.attempts.attempt(Operation.PREPARE, "team", "trainer", UID):
        assert claim.newest.running
        assert claim.newest.since == 1000
        assert claim.newest.refusal == waiting.refusal
        claim.now += 1
    assert not claim.attempts.newest({UID})
    assert not claim.attempts.any_refused
    assert [ended.reason for ended in claim.ended] == ["Other", "InUse", ""]
    assert [ended.seconds for ended in claim.ended] == [2, 2, 1]


def test_a_release_is_a_matter_of_its_own() -> None:
    """It waits since its own first attempt, and what was in the way of a prepare is past."""
    claim = Clocked()
    claim.fail(
        Operation.PREPARE, NotAdmitted(Problem(code=Code.DOES_NOT_FIT, message="no room"), record())
    )
    claim.now += 10
    with claim.attempts.attempt(Operation.RELEASE, "team", "trainer", UID):
        newest = claim.newest
        assert (newest.operation, newest.since, newest.refusal) == (Operation.RELEASE, 1012, None)
    assert [(ended.operation, ended.reason) for ended in claim.ended] == [
        (Operation.PREPARE, "DoesNotFit"),
        (Operation.RELEASE, ""),
    ]


def test_a_fault_of_ours_is_counted_and_a_cancelled_attempt_is_not() -> None:
    """The agent stops; nothing came of that attempt."""
    claim = Clocked()
    claim.fail(Operation.PREPARE, KeyError("x"))
    assert claim.ended == [Ended(Operation.PREPARE, 2.0, "Internal")]
    assert claim.newest.refusal is not None
    assert "KeyError" in claim.newest.refusal.message
    claim.fail(Operation.PREPARE, asyncio.CancelledError())
    assert len(claim.ended) == 1
    assert not claim.newest.running


@pytest.mark.parametrize("jump", [0.0, 86_400.0, -86_400.0])
def test_what_nobody_asks_for_any_more_is_forgotten(jump: float) -> None:
    """After some minutes, unless there is a record of it, whatever the time of day is set to."""
    claim = Clocked()
    claim.fail(Operation.PREPARE, NodeagentError("not now"))
    claim.jumped = jump
    claim.now += FORGOTTEN_AFTER
    assert UID in claim.attempts.newest(())
    claim.now += 1
    assert UID in claim.attempts.newest({UID})
    assert UID not in claim.attempts.newest(())


def test_a_claim_is_ending_until_its_release_is_known() -> None:
    claim, key = Clocked(), {("team", "trainer")}
    with claim.attempts.attempt(Operation.PREPARE, "team", "trainer", UID):
        assert claim.attempts.ending == set()
    claim.fail(Operation.RELEASE, StillInUse("pid 4711 uses it", remedy="end it"))
    assert claim.attempts.ending == set()
    with claim.attempts.attempt(Operation.RELEASE, "team", "trainer", UID):
        assert claim.attempts.ending == key
    assert claim.attempts.ending == key
    claim.now += FORGOTTEN_AFTER + 1
    claim.attempts.newest(())
    assert claim.attempts.ending == set()


# --- what is waited for ---------------------------------------------------------------------------


HELD = ClaimHeldUp("its device is held")


class Waiting:
    """Claims that cannot be prepared while there is an `error`."""

    def __init__(self) -> None:
        self.error: NodeagentError | None = HELD
        self.patience = Patience()
        self.tried: list[float] = []
        self.waits: list[NodeagentError] = []

    async def perform(self, operation: Operation, claim: ClaimName) -> tuple[ClaimedDevice, ...]:
        if operation is Operation.RELEASE:  # nothing is there
            return ()
        return await self.patience.persist(claim.uid, self._prepare, self.waits.append)

    async def _prepare(self) -> tuple[ClaimedDevice, ...]:
        self.tried.append(now())
        if self.error:
            raise self.error
        return ()


@pytest.fixture
def claims() -> Waiting:
    return Waiting()


@pytest.fixture
async def calls(claims: Waiting) -> AsyncIterator[ClaimCalls]:
    made = ClaimCalls(claims.perform, claims.patience.give_way)
    yield made
    await made.close()


@pytest.mark.parametrize("seconds", [1.7, 20.0, PATIENCE - 3])
async def test_what_passes_is_waited_for(
    claims: Waiting, calls: ClaimCalls, seconds: float
) -> None:
    begin, call = now(), asyncio.create_task(calls.prepare(CLAIM))
    await asyncio.sleep(seconds)
    claims.error = None
    assert await call == ()
    assert now() - begin <= seconds + 2
    assert claims.waits[0] is HELD


async def test_what_lasts_is_refused_within_the_call(claims: Waiting, calls: ClaimCalls) -> None:
    begin = now()
    with pytest.raises(ClaimRefused, match="its device is held"):
        await calls.prepare(CLAIM)
    assert PATIENCE - 3 <= now() - begin <= PATIENCE < ANSWER_WITHIN
    assert len(claims.tried) < 25


async def test_what_does_not_pass_is_refused_at_once(claims: Waiting, calls: ClaimCalls) -> None:
    """A claim that is wrong stays so."""
    claims.error = ClaimRefused("it says how the plan's device is shared")
    begin = now()
    with pytest.raises(ClaimRefused):
        await calls.prepare(CLAIM)
    assert (now(), len(claims.tried), claims.waits) == (begin, 1, [])


async def test_what_may_have_passed_is_tried_at_once(claims: Waiting, calls: ClaimCalls) -> None:
    """As when a release ended; however often that is said, twice a second at most in the end."""
    call = asyncio.create_task(calls.prepare(CLAIM))
    await asyncio.sleep(10)
    tried, claims.error = len(claims.tried), StillInUse("pid 4711 uses it")
    for _ in range(1000):
        claims.patience.wake()
        await asyncio.sleep(0.01)
    assert 18 <= len(claims.tried) - tried <= 21
    claims.error = None
    claims.patience.wake()
    begin = now()
    await call
    assert now() - begin <= 0.5


async def test_a_pod_that_ends_does_not_wait(claims: Waiting, calls: ClaimCalls) -> None:
    """Its release ends the work that only waits; that call gets the reason."""
    preparing = asyncio.create_task(calls.prepare(CLAIM))
    await asyncio.sleep(10)
    begin = now()
    await calls.release(CLAIM)
    assert now() - begin <= 0.5
    with pytest.raises(ClaimRefused, match="its device is held"):
        await preparing
