import asyncio
import threading
from contextlib import suppress

import pytest

from nodeagent.api.limits import TCP_LIMITS
from nodeagent.structs import replace
from tests.api.serving import api, assert_described
from tests.machine_load import stretched, until
from tests.rig import plan_text

GOOD, BAD = plan_text("{1g.10gb: 7}"), plan_text("{1g.10gb: 8}")


@pytest.mark.parametrize(
    ("body", "status", "verdict"),
    [
        (GOOD, 200, "applicable"),
        (BAD, 422, "unsatisfiable"),
        (b"\xff\xfe", 400, "invalid"),
        (b"", 400, "invalid"),
    ],
)
async def test_a_preview(body: bytes, status: int, verdict: str) -> None:
    """A plan that can be, one that cannot, and what is no plan; each in the shape of a plan."""
    async with api() as served:
        async with served.session.post(f"{served.base}/v1/plan/preview", data=body) as answer:
            found = await answer.json()
        assert (answer.status, found["verdict"]) == (status, verdict)
        assert bool(found["problems"]) == (status != 200)
        assert bool(found["gpus"]) == (status == 200)
        assert_described("/v1/plan/preview", status, found, "post")


MIG_PARTED = b"""version: v1
mig-configs:
  small:
  - {devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 7}}
  none:
  - {devices: [0], mig-enabled: false}
"""


async def test_a_preview_of_a_mig_parted_configuration() -> None:
    async with api() as served:
        url = f"{served.base}/v1/plan/preview?configuration="
        async with served.session.post(url + "small", data=MIG_PARTED) as answer:
            assert (await answer.json())["verdict"] == "applicable"
        async with served.session.post(url + "none", data=MIG_PARTED) as answer:
            assert (await answer.json())["verdict"] == "inSync"
        async with served.session.post(url + "other", data=MIG_PARTED) as answer:
            assert answer.status == 400


async def test_no_preview_before_the_first_look() -> None:
    async with (
        api(observed=False) as served,
        served.session.post(f"{served.base}/v1/plan/preview", data=GOOD) as answer,
    ):
        assert answer.status == 503


async def test_a_body_that_is_too_large() -> None:
    async with api() as served:
        for size, status in ((64 * 1024, 400), (64 * 1024 + 1, 413)):
            url = f"{served.base}/v1/plan/preview"
            async with served.session.post(url, data=b"#" * size) as answer:
                assert answer.status == status


async def test_previews_wait_for_those_whose_askers_left() -> None:
    """A thread cannot be ended: asking and leaving again and again must not take them all."""
    now, most, go_on = 0, 0, threading.Event()

    def slow(_: bytes, __: str | None) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        go_on.wait(stretched(60))
        now -= 1

    async with api(previewing=slow) as served:
        url = f"{served.base}/v1/plan/preview"
        refused = None
        while refused is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05), served.session.post(url, data=GOOD) as answer:
                    assert answer.status == 503, "it cannot be answered yet"
                    refused = (await answer.json())["error"]
        assert "too many" in refused
        go_on.set()
        await until(lambda: not any(task.get_name() == "preview" for task in asyncio.all_tasks()))
        assert (now, most) == (0, 1)


async def test_previews_that_come_at_the_same_moment_are_counted() -> None:
    limits = replace(TCP_LIMITS, previews=1)
    async with api(previewing=lambda _, __: None, limits=limits) as served:
        host, _, port = served.base.removeprefix("http://").partition(":")
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(3)]

        async def answers(request: str) -> list[str]:
            for _, writer in opened:
                writer.write(f"{request}\r\n\r\n".encode())
            return [(await reader.readuntil(b"}")).decode() for reader, _ in opened]

        # From here on all of them are served, and idle.
        await answers("GET /healthz HTTP/1.1\r\nHost: localhost")
        found = await answers("POST /v1/plan/preview HTTP/1.1\r\nHost: localhost")
        for _, writer in opened:
            writer.close()
    assert ["too many" in answer for answer in found].count(True) == 2
