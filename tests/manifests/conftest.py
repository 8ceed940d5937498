"""A server that the agent's client can be tried on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.simulated_cluster.api_server import ApiServer


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    """The test API server, with a Node `gpu-0`."""
    async with ApiServer() as api:
        api.add_node("gpu-0")
        yield api
