"""What keeps a claim from being ready is waited for, within the kubelet's call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from nodeagent.claims.model import ClaimedDevice, ClaimHeldUp, ClaimRefused
from nodeagent.claims.serving.attempts import PATIENCE, Patience
from nodeagent.cluster.kubelet.plugin.claim_calls import ANSWER_WITHIN, ClaimCalls, ClaimName
from nodeagent.errors import NodeagentError, StillInUse
from tests.cluster.kubelet.plugin.rig import claim_name, now

pytestmark = pytest.mark.virtual_time
CLAIM = claim_name()
HELD = ClaimHeldUp("its device is held")


class Waiting:
    """Claims that cannot be prepared while there is an `error`."""

    def __init__(self) -> None:
        self.error: NodeagentError | None = HELD
        self.patience = Patience()
        self.tried: list[float] = []
        self.waits: list[NodeagentError] = []

    async def prepare(self, claim: ClaimName) -> tuple[ClaimedDevice, ...]:
        return await self.patience.persist(claim.uid, self._prepare, self.waits.append)

    async def _prepare(self) -> tuple[ClaimedDevice, ...]:
        self.tried.append(now())
        if self.error:
            raise self.error
        return ()

    async def release(self, claim: ClaimName) -> None:
        """Nothing is there."""

    def give_way(self, claim: ClaimName) -> None:
        self.patience.give_way(claim.uid)


@pytest.fixture
def claims() -> Waiting:
    """With a device that is held."""
    return Waiting()


@pytest.fixture
async def calls(claims: Waiting) -> AsyncIterator[ClaimCalls]:
    """The kubelet's."""
    made = ClaimCalls(claims)
    yield made
    await made.close()


@pytest.mark.parametrize("seconds", [1.7, 20.0, PATIENCE - 3])
async def test_what_passes_is_waited_for(
    claims: Waiting, calls: ClaimCalls, seconds: float
) -> None:
    """The call that began before it passed has the devices 2 s later at most."""
    begin, call = now(), asyncio.create_task(calls.prepare(CLAIM))
    await asyncio.sleep(seconds)
    claims.error = None
    assert await call == ()
    assert now() - begin <= seconds + 2
    assert claims.waits[0] is HELD


async def test_what_lasts_is_refused_within_the_call(claims: Waiting, calls: ClaimCalls) -> None:
    """With what it waited for, and not as work that goes on; some twenty attempts were made."""
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
