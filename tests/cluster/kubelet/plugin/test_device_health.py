"""When the kubelet is sent the health of devices: at each change, and before it forgets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise

import pytest

from nodeagent.claims.reporting.device_reports import DeviceHealth
from nodeagent.cluster.kubelet.plugin.claim_calls import HEARTBEAT, HealthFeed
from tests.cluster.kubelet.plugin.rig import now
from tests.simulated_cluster.kubelet_claims import SILENCE

pytestmark = pytest.mark.virtual_time
HEALTHY = (DeviceHealth("n/gpu-1", "gpu", "healthy", 1.0),)
SICK = (DeviceHealth("n/gpu-1", "gpu", "unhealthy", 2.0, "Xid 79"),)

Lists = AsyncGenerator[tuple[DeviceHealth, ...], None]


async def test_the_list_comes_at_once_and_at_each_change() -> None:
    """Whole each time, without a wait."""
    feed = HealthFeed()
    feed.publish(HEALTHY)
    async with aclosing(feed.watch()) as lists:
        begin = now()
        assert await anext(lists) == HEALTHY
        feed.publish(SICK)
        assert await anext(lists) == SICK
        assert now() == begin


async def test_it_comes_again_well_before_the_kubelet_forgets() -> None:
    """For an hour without a change no two messages are further apart than a third of its wait."""
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


async def test_a_change_is_not_lost_while_the_watcher_is_busy() -> None:
    """What was published between is left out; the newest comes at once."""
    feed = HealthFeed()
    async with aclosing(feed.watch()) as lists:
        assert await anext(lists) == ()
        begin = now()
        feed.publish(HEALTHY)
        await asyncio.sleep(25)
        feed.publish(SICK)
        assert await anext(lists) == SICK
        assert now() == begin + 25
