"""Events over HTTP: as a list, and as a stream that goes on where it was cut."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from nodeagent.reconcile.event_log import EventType
from tests.api.serving import api
from tests.machine_load import stretched


async def test_events_of_the_last_hour() -> None:
    """With why, the numbers, and how often; a stream begins with them."""
    async with api() as served:
        for seconds in (0.25, 0.5):
            why, facts = "not in the plan", {"seconds": seconds}
            served.events.add(EventType.STEP_FAILED, "it did not go", reason=why, facts=facts)
        _, [event] = await served.get("/v1/events?within=3600")
        assert (event["severity"], event["reason"]) == ("warning", "not in the plan")
        assert (event["facts"], event["count"], event["first"]) == ({"seconds": 0.5}, 2, 1)
        assert event["since"] <= event["time"]
        assert await served.get("/v1/events?within=0") == (200, [])
        status, refused = await served.get("/v1/events?within=1h")
        assert (status, refused["error"]) == (
            400,
            'within is a whole number of seconds, not "1h"',
        )
        headers = {"Accept": "text/event-stream"}
        address = f"{served.base}/v1/events?within=3600"
        async with served.session.get(address, headers=headers) as answer:
            assert await read_events(answer, 1) == [event]


def test_every_type_is_explained() -> None:
    """In the section about them."""
    page = Path("docs/operations.md").read_text(encoding="utf-8")
    section = page.split("## What was decided and why\n")[1].split("\n## ")[0]
    named = {*re.findall(r"`([A-Z][A-Za-z]+)`", section.split("| of | types |")[1])}
    assert named == {kind.value for kind in EventType}


async def read_events(answer: Any, count: int) -> list[dict[str, Any]]:
    """The next events of a stream."""
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(stretched(30)):
        while len(events) < count:
            line = (await answer.content.readline()).decode()
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
    return events


async def test_events_as_a_stream() -> None:
    """A follower gets the events from now on."""
    async with api() as served:
        served.events.add(EventType.STARTED, "before")
        headers = {"Accept": "text/event-stream"}
        async with served.session.get(f"{served.base}/v1/events", headers=headers) as answer:
            assert answer.content_type == "text/event-stream"
            assert (await answer.content.readline()).startswith(b":")
            served.events.add(EventType.APPLIED, "after")
            assert [e["message"] for e in await read_events(answer, 1)] == ["after"]


async def test_a_cut_stream_goes_on_where_it_ended() -> None:
    """With the id of the last event received, none is missed and none comes twice."""
    async with api() as served:
        for number in range(1, 4):
            served.events.add(EventType.APPLIED, str(number))
        headers = {"Accept": "text/event-stream", "Last-Event-ID": "1"}
        async with served.session.get(f"{served.base}/v1/events", headers=headers) as answer:
            assert [e["message"] for e in await read_events(answer, 2)] == ["2", "3"]


async def test_followers_do_not_hold_up_the_end() -> None:
    """When the log is closed the streams end, and so does the listener."""
    async with api() as served:
        headers = {"Accept": "text/event-stream"}
        answer = await served.session.get(f"{served.base}/v1/events", headers=headers)
        await answer.content.readline()
        served.events.close()
        async with asyncio.timeout(stretched(30)):
            assert b"data" not in await answer.content.read()
        answer.close()
