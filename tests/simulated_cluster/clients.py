"""The real Kubernetes client, set up for a server of the tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

from kubernetes.aio import client, watch

Api: TypeAlias = client.CoreV1Api

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
