"""The status as bytes: rendered when the state changed, sent to everyone, never old."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from nodeagent.api.answers import RenderedStatus
from tests.api.serving import api


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
        return int(json.loads(page.body)["state"])


def test_a_state_is_rendered_once() -> None:
    """However often it is requested; separately for one GPU, and None for an unknown GPU. A page
    of one GPU grows no older than the one of all.
    """
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
def test_a_state_that_changes_all_the_time_is_never_old_and_costs_little(
    seconds: float, most: float
) -> None:
    """Asked 500 times a second for 10 s, while it changes each time: a hundredth of the time goes
    into rendering, or what it costs to be no older than 0.1 s.
    """
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


async def test_clients_that_have_it_already_get_no_more() -> None:
    """By its tag; compressed where that is accepted, with the same text in it."""
    async with api() as served:
        url = f"{served.base}/v1/status"
        async with served.session.get(url) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            tag, found = answer.headers["ETag"], await answer.json()
        plain = served.session.get(url, headers={"Accept-Encoding": "identity"})
        async with plain as answer:
            assert "Content-Encoding" not in answer.headers
            body = await answer.read()
        assert json.loads(body) == found
        page = served.answers.status(None)
        assert page is not None
        assert gzip.decompress(page.zipped) == body
        async with served.session.get(url, headers={"If-None-Match": tag}) as answer:
            assert (answer.status, await answer.read()) == (304, b"")
