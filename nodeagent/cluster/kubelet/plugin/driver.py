"""The DRA driver towards the kubelet: its sockets, in the order in which they come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from nodeagent.claims.names import DRIVER
from nodeagent.cluster.kubelet.plugin.claim_calls import ClaimCalls
from nodeagent.cluster.kubelet.plugin.device_health import HealthFeed
from nodeagent.cluster.kubelet.plugin.health_stream import health_streams
from nodeagent.cluster.kubelet.plugin.registration import Registration, RegistrationService
from nodeagent.cluster.kubelet.plugin.server import DraService
from nodeagent.cluster.kubelet.plugin.sockets import check_path, serve


@asynccontextmanager
async def dra_driver(
    kubelet_dir: Path,
    claims: ClaimCalls,
    health: HealthFeed,
    on_registration: Callable[[Registration], None] = lambda _: None,
) -> AsyncIterator[RegistrationService]:
    """Serve the kubelet as the DRA driver; what it said of that is in what this gives.

    The kubelet finds the driver by its registration socket, so the DRA service is there before it
    and after it. `kubelet_dir` is the kubelet's root directory, at the same path as for the
    kubelet. `on_registration` gets each answer of the kubelet that is another. `claims` is closed
    in the end. Raises PathRefused.
    """
    endpoint = kubelet_dir / "plugins" / DRIVER / "dra.sock"
    socket = kubelet_dir / "plugins_registry" / f"{DRIVER}-reg.sock"
    for path in (endpoint, socket):
        check_path(path)
    services = [DraService(claims).handler(), *health_streams(health)]
    registration = RegistrationService(endpoint, on_registration)
    try:
        async with (
            serve(endpoint, services, own_directory=True),
            serve(socket, [registration.handler()]),
        ):
            yield registration
    finally:
        await claims.close()
