import asyncio
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from aiohttp import ClientSession, UnixConnector

from nodeagent.api.answers import RenderedStatus
from nodeagent.api.limits import TCP_LIMITS
from nodeagent.api.openapi import DESCRIPTION
from nodeagent.api.routes import create_app
from nodeagent.reconcile.event_log import EventType
from nodeagent.structs import replace
from tests.api.serving import api, assert_described
from tests.machine_load import stretched


async def test_every_answer_is_as_described() -> None:
    async with api() as served:
        served.events.add(EventType.APPLIED, "done", gpu="GPU-1")
        ours = ("status", "history", "advice", "plan", "mps", "events")
        for path in ("/healthz", "/readyz", *(f"/v1/{one}" for one in ours), "/openapi.json"):
            status, body = await served.get(path)
            assert status == 200
            assert_described(path, 200, body)


async def test_the_description_lists_exactly_the_routes() -> None:
    async with api() as served:
        app = create_app(served.answers, listen_host="", limits=TCP_LIMITS)
        routes = {
            (route.method.lower(), route.resource.canonical)
            for route in app.router.routes()
            if route.resource and route.method != "HEAD"
        }
    described = {(method, path) for path, item in DESCRIPTION["paths"].items() for method in item}
    assert routes == described


def test_the_descriptions_schemas_are_valid() -> None:
    for schema in DESCRIPTION["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    names = {
        part.split('"')[0] for part in json.dumps(DESCRIPTION).split("#/components/schemas/")[1:]
    }
    assert names <= set(DESCRIPTION["components"]["schemas"])


def test_every_operation_has_a_name() -> None:
    names = [
        operation["operationId"]
        for path in DESCRIPTION["paths"].values()
        for operation in path.values()
    ]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", name) for name in names)


async def test_reasons_make_a_503() -> None:
    async with api() as served:
        served.reasons.append("the reconciler has not been heard of")
        for path in ("/healthz", "/readyz"):
            status, body = await served.get(path)
            assert status == 503
            assert body["reasons"] == served.reasons
            assert_described(path, 503, body)


async def test_the_status_of_one_gpu_is_that_of_now() -> None:
    async with api() as served:
        path = f"/v1/status?gpu={served.answers.state.observed.gpus[1].uuid}"
        assert (await served.get(path))[1]["source"] == "file"
        served.answers.state = replace(served.answers.state, source="annotation")
        async with asyncio.timeout(stretched(30)):
            while (await served.get(path))[1]["source"] == "file":
                pass


async def test_advice_is_made_for_one_request_at_a_time() -> None:
    async with api() as served:
        answers = await asyncio.gather(*(served.get("/v1/advice") for _ in range(20)))
        assert [status for status, _ in answers] == [200] * 20
        assert served.answers.most_advising == 1


async def test_the_advice_of_one_namespace() -> None:
    async with api() as served:
        _, all_of_them = await served.get("/v1/advice")
        assert [one["workload"] for one in all_of_them["advice"]] == ["1000", "web"]
        _, found = await served.get("/v1/advice?namespace=team-a")
        [one] = found["advice"]
        assert (one["verdict"], one["advised"], one["freesSlices"]) == ("smaller", "1g.10gb", 3)
        assert (one["peak"], one["activity"], one["freesPart"]) == (7 << 30, 12.0, 0.375)
        _, none = await served.get("/v1/advice?namespace=team-b")
        assert none == {"node": "node-a", "advice": []}


async def test_the_history_of_one_gpu() -> None:
    async with api() as served:
        _, found = await served.get("/v1/history")
        assert sorted(found["gpus"]) == ["GPU-a", "GPU-b"]
        _, one = await served.get("/v1/history?gpu=GPU-b")
        assert one["gpus"] == {"GPU-b": found["gpus"]["GPU-b"]}
        assert one["gpus"]["GPU-b"]["utilization"] == [None, 7]
        status, refused = await served.get("/v1/history?gpu=GPU-c")
        assert (status, refused["error"]) == (404, "nothing was read of a GPU 'GPU-c'")
        assert_described("/v1/history", 404, refused)


async def test_the_unix_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    path.touch()  # left by an agent that was killed
    async with api(unix_socket=path):
        assert path.stat().st_mode & 0o777 == 0o600
        async with (
            ClientSession(connector=UnixConnector(str(path))) as session,
            session.get("http://agent/healthz") as answer,
        ):
            assert answer.status == 200
    assert not path.exists()


class Node:
    """A node whose state is a number; to look at it takes a fifth of `seconds`, the rest goes into
    rendering, in virtual time.
    """

    def __init__(self, seconds: float = 0.005) -> None:
        self.now = 0.0
        self.seconds = seconds
        self.state = 1
        self.rendered = 0
        self.status = RenderedStatus(self._look, self._report, lambda: self.now)

    def _look(self) -> int:
        self.now += self.seconds / 5
        return self.state

    def _report(self, state: int, gpu: str | None) -> dict[str, Any] | None:
        self.now += self.seconds * 4 / 5
        self.rendered += 1
        return {"state": state} if gpu in (None, "GPU-1") else None

    def shown(self, gpu: str | None = None) -> int:
        page = self.status.page(gpu)
        assert page is not None
        return int(json.loads(page)["state"])


def test_a_state_is_rendered_once() -> None:
    node = Node()
    for _ in range(1000):
        assert node.shown() == node.shown("GPU-1") == 1
        node.now += 0.01
    assert node.rendered == 2
    assert node.status.page("GPU-none") is None
    node.state += 1
    node.now += 0.2
    assert node.shown() == node.shown("GPU-1") == 2


@pytest.mark.parametrize(("seconds", "most"), [(0.0005, 0.11), (0.001, 0.11), (0.005, 0.55)])
def test_a_state_that_keeps_changing_is_never_old_and_costs_little(
    seconds: float, most: float
) -> None:
    node, oldest = Node(seconds), 0.0
    changed = {node.state: node.now}
    while node.now < 10:
        node.state += 1
        changed[node.state] = node.now
        next_change = changed.get(node.shown() + 1, node.now)
        oldest = max(oldest, node.now - next_change)
        node.now += 0.002
    assert node.rendered * seconds < most
    assert oldest < 0.11


async def test_events_of_the_last_hour() -> None:
    async with api() as served:
        for seconds in (0.25, 0.5):
            why, facts = "not in the plan", {"seconds": seconds}
            served.events.add(EventType.STEP_FAILED, "it did not go", reason=why, facts=facts)
        _, [event] = await served.get("/v1/events?within=3600")
        assert (event["severity"], event["reason"]) == ("warning", "not in the plan")
        assert (event["facts"], event["count"], event["first"]) == ({"seconds": 0.5}, 2, 1)
        assert event["since"] <= event["time"]
        assert await served.get("/v1/events?within=0") == (200, [])
        for given in ("1h", "9" * 10, "\u0663"):  # the last one is a digit that is no ASCII
            status, refused = await served.get(f"/v1/events?within={given}")
            error = f'within is a whole number of seconds, not "{given}"'
            assert (status, refused["error"]) == (400, error)
        assert (await served.get(f"/v1/events?within={'9' * 9}"))[0] == 200
        headers = {"Accept": "text/event-stream"}
        address = f"{served.base}/v1/events?within=3600"
        async with served.session.get(address, headers=headers) as answer:
            assert await read_events(answer, 1) == [event]


def test_every_type_is_explained() -> None:
    page = Path("docs/operations.md").read_text(encoding="utf-8")
    section = page.split("## What was decided and why\n")[1].split("\n## ")[0]
    named = {*re.findall(r"`([A-Z][A-Za-z]+)`", section.split("| of | types |")[1])}
    assert named == {kind.value for kind in EventType}


async def read_events(answer: Any, count: int) -> list[dict[str, Any]]:
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
    async with api() as served:
        for number in range(1, 4):
            served.events.add(EventType.APPLIED, str(number))
        headers = {"Accept": "text/event-stream", "Last-Event-ID": "1"}
        async with served.session.get(f"{served.base}/v1/events", headers=headers) as answer:
            assert [e["message"] for e in await read_events(answer, 2)] == ["2", "3"]


async def test_a_follower_too_many_may_follow_when_another_is_gone() -> None:
    limits = replace(TCP_LIMITS, followers=1)
    async with api(limits=limits) as served, asyncio.timeout(stretched(30)):
        headers = {"Accept": "text/event-stream"}
        ask = partial(served.session.get, f"{served.base}/v1/events", headers=headers)
        for _ in range(2):
            while (one := await ask()).status != 200:
                one.close()  # the one before is not known to be gone
            async with ask() as another:
                assert another.status == 503
            one.close()


async def test_followers_do_not_hold_up_the_end() -> None:
    async with api() as served:
        headers = {"Accept": "text/event-stream"}
        answer = await served.session.get(f"{served.base}/v1/events", headers=headers)
        await answer.content.readline()
        served.events.close()
        async with asyncio.timeout(stretched(30)):
            assert b"data" not in await answer.content.read()
        answer.close()
