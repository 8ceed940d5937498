import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import pairwise

import pytest
import structlog.testing

from nodeagent.claims.reporting.device_reports import DeviceHealth
from nodeagent.cluster.kubelet.plugin.claim_calls import (
    ANSWER_WITHIN,
    HEARTBEAT,
    ClaimCalls,
    HealthFeed,
    StillWorking,
)
from nodeagent.errors import NodeagentError
from nodeagent.structs import replace
from tests.cluster.kubelet.plugin.rig import CLAIM, Claims, devices_of, now
from tests.machine_load import cancelled
from tests.simulated_cluster.kubelet_claims import CALL_WITHIN, SILENCE

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def calls(claims: Claims) -> AsyncIterator[ClaimCalls]:
    made = claims.calls()
    yield made
    await made.close()


async def test_calls_for_one_claim_share_its_work(claims: Claims, calls: ClaimCalls) -> None:
    claims.seconds = 5
    first = asyncio.create_task(calls.prepare(CLAIM))
    await asyncio.sleep(3)
    answers = await asyncio.gather(first, calls.prepare(CLAIM), calls.prepare(CLAIM))
    assert list(answers) == [devices_of(CLAIM)] * 3
    assert claims.begun == [("prepare", CLAIM.uid)]
    await calls.prepare(CLAIM)
    assert len(claims.begun) == 2


async def test_a_call_ends_before_the_kubelet_gives_up(claims: Claims, calls: ClaimCalls) -> None:
    assert ANSWER_WITHIN <= CALL_WITHIN - 5
    claims.seconds = 100
    begin = now()
    for attempt in (1, 2):
        with pytest.raises(StillWorking, match="still working on claim team/claim-a1") as caught:
            await calls.prepare(CLAIM)
        assert now() - begin == ANSWER_WITHIN * attempt
        assert "the kubelet's next call finds it done" in str(caught.value)
    assert await calls.prepare(CLAIM) == devices_of(CLAIM)
    assert now() - begin == 100
    assert claims.begun == [("prepare", CLAIM.uid)]


async def test_a_cancelled_call_stops_no_work(claims: Claims, calls: ClaimCalls) -> None:
    claims.seconds = 30
    call = asyncio.create_task(calls.prepare(CLAIM))
    await asyncio.sleep(10)
    await cancelled(call)
    assert await calls.prepare(CLAIM) == devices_of(CLAIM)
    assert claims.begun == [("prepare", CLAIM.uid)]


async def test_a_release_waits_for_the_prepare(claims: Claims, calls: ClaimCalls) -> None:
    claims.seconds = 10
    begin = now()
    preparing = asyncio.create_task(calls.prepare(CLAIM))
    await asyncio.sleep(1)
    releasing = asyncio.create_task(calls.release(CLAIM))
    await asyncio.sleep(10)
    assert preparing.done()
    await asyncio.gather(releasing, calls.prepare(CLAIM))
    assert now() - begin == 30
    assert [kind for kind, _ in claims.begun] == ["prepare", "release", "prepare"]
    assert claims.prepared == {CLAIM}


async def test_a_release_that_timed_out_does_not_begin(claims: Claims, calls: ClaimCalls) -> None:
    """The kubelet may want the claim again by then."""
    claims.seconds = 60
    preparing = asyncio.gather(calls.prepare(CLAIM), return_exceptions=True)
    await asyncio.sleep(1)
    with pytest.raises(StillWorking, match="its prepare takes more than 40 s"):
        await calls.release(CLAIM)
    await preparing
    await asyncio.sleep(100)
    assert claims.begun == [("prepare", CLAIM.uid)]
    assert claims.prepared == {CLAIM}


async def test_work_that_fails_alone_is_quiet(claims: Claims, calls: ClaimCalls) -> None:
    """No call waits for it; asyncio has nothing to report of it (the run would fail)."""
    claims.seconds = 50
    claims.errors[CLAIM.uid] = NodeagentError("GPU 0 is full")
    with pytest.raises(StillWorking):
        await calls.release(CLAIM)
    await asyncio.sleep(100)
    claims.seconds = 0
    await calls.release(CLAIM)
    assert len(claims.begun) == 2


async def test_a_fault_of_ours_is_an_answer_too(claims: Claims, calls: ClaimCalls) -> None:
    claims.errors[CLAIM.uid] = KeyError("slices")
    with structlog.testing.capture_logs() as logs, pytest.raises(NodeagentError) as caught:
        await calls.prepare(CLAIM)
    failed = "the prepare of claim team/claim-a1 (uid a1) failed: KeyError('slices')"
    assert caught.value.message == failed
    assert "`journalctl -u nodeagent`" in caught.value.remedy
    assert [(line["event"], line["claim"]) for line in logs] == [
        ("work on a claim failed", str(CLAIM))
    ]


async def test_closing_ends_the_work(claims: Claims, calls: ClaimCalls) -> None:
    claims.hold()
    with pytest.raises(StillWorking):
        await calls.prepare(CLAIM)
    await calls.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert claims.prepared == set()


# --- the health of devices ------------------------------------------------------------------------

HEALTHY = (DeviceHealth("n/gpu-1", "gpu", "healthy", 1.0),)
SICK = (DeviceHealth("n/gpu-1", "gpu", "unhealthy", 2.0, "Xid 79"),)


async def test_health_comes_again_well_before_the_kubelet_forgets() -> None:
    assert HEARTBEAT * 3 <= SILENCE
    feed = HealthFeed()
    feed.publish(HEALTHY)
    times: list[float] = []
    async with aclosing(feed.watch()) as lists:
        while not times or times[-1] - times[0] < 3600:
            assert await anext(lists) == HEALTHY
            feed.publish([replace(HEALTHY[0], at=now())])  # which is no reason to send it at once
            times.append(now())
    gaps = {later - earlier for earlier, later in pairwise(times)}
    assert gaps == {HEARTBEAT}


async def test_a_change_of_health_is_not_lost_while_the_watcher_is_busy() -> None:
    feed = HealthFeed()
    async with aclosing(feed.watch()) as lists:
        assert await anext(lists) == ()
        begin = now()
        feed.publish(HEALTHY)
        await asyncio.sleep(25)
        feed.publish(SICK)
        assert await anext(lists) == SICK
        assert now() == begin + 25
