"""The real Kubernetes client, set up for a server of the tests, and what tests do with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Self, TypeAlias

from kubernetes.aio import client, watch

from tests.machine_load import stretched
from tests.simulated_cluster.api_server import ApiServer

Api: TypeAlias = client.CoreV1Api
exceptions = client.exceptions

KEY = "nodeagent.io/plan"
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


@contextlib.asynccontextmanager
async def core_api(url: str, *, token: str = "", ca_file: str | None = None) -> AsyncIterator[Api]:
    """The client's core API; its connections are closed at the end."""
    configuration = client.Configuration(host=url)
    configuration.ssl_ca_cert = ca_file
    if token:
        configuration.api_key = {"BearerToken": f"Bearer {token}"}
    async with client.ApiClient(configuration) as api_client:
        yield client.CoreV1Api(api_client)


async def watched(
    api: Api,
    name: str,
    *,
    version: str | None = None,
    seconds: int = 1,
    until: int | None = None,
    **more: Any,
) -> list[Any]:
    """What a watch of one Node yields until it ends by itself, or until so many events came."""
    given = {} if version is None else {"resource_version": version}
    events: list[Any] = []
    async with watch.Watch() as watching:
        stream = watching.stream(
            api.list_node,
            field_selector=f"metadata.name={name}",
            timeout_seconds=seconds,
            _request_timeout=seconds + 5,
            **given,
            **more,
        )
        async for event in stream:
            events.append(event)
            if len(events) == until:
                break
    return events


def versions(api: ApiServer) -> str:
    """The present version, as a watch names it."""
    return str(api.store.version)


class Following:
    """An open watch of `gpu-0` from the present version on, in a task of its own."""

    def __init__(self, api: ApiServer, core: Api, *, seconds: int = 60) -> None:
        self.events: list[Any] = []
        self._api, self._core, self._seconds = api, core, seconds
        self._from = str(api.store.version)

    async def __aenter__(self) -> Self:
        before = len(self._api.faults.watching)
        self.task = asyncio.create_task(self._follow())
        while len(self._api.faults.watching) == before:
            await asyncio.sleep(0.005)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _follow(self) -> None:
        async with watch.Watch() as watching:
            async for event in watching.stream(
                self._core.list_node,
                field_selector="metadata.name=gpu-0",
                resource_version=self._from,
                timeout_seconds=self._seconds,
                _request_timeout=self._seconds + 1,
            ):
                self.events.append(event)

    async def heard(self, count: int) -> None:
        async with asyncio.timeout(stretched(30)):
            while len(self.events) < count:
                await asyncio.sleep(0.005)


def annotation(value: object, key: str = KEY) -> dict[str, Any]:
    """A patch of one annotation."""
    return {"metadata": {"annotations": {key: value}}}


async def merge(api: Api, name: str, patch: object) -> Any:
    """Merge a patch into a Node."""
    return await api.patch_node(name, patch, _content_type=MERGE)
