"""Allocates published devices to the claims of an API server, as Kubernetes' scheduler does."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import uuid4

from tests.simulated_cluster.allocator import (
    DRIVER,
    Allocated,
    Device,
    Request,
    complete_pools,
    first_fit,
)
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.store import Key


class Scheduler:
    """Keeps the claims of one API server allocated; the tests say when."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api

    def claim(self, namespace: str, name: str) -> dict[str, Any]:
        return self._api.store.create("resourceclaims", namespace, {"metadata": {"name": name}})

    def allocate(
        self,
        namespace: str,
        name: str,
        wanted: Callable[[Device], bool],
        parameters: Mapping[str, Any] | None = None,
        capacity: Mapping[str, int] = {},
    ) -> str:
        """Give the claim the first device that fits; its name, "" when none does. `parameters`:
        what its class has configured for the driver; `capacity`: how much of it.
        """
        pools = complete_pools(self._api.store.all("resourceslices"))
        found = first_fit(pools, self._allocated(), Request(wanted, capacity))
        if not found:
            return ""
        self._write(namespace, name, found[0], parameters)
        return found[0].device

    def delete(self, namespace: str, name: str) -> None:
        self._api.store.delete(Key("resourceclaims", namespace, name))

    def _allocated(self) -> Iterator[Allocated]:
        for claim in self._api.store.all("resourceclaims"):
            allocation = claim.get("status", {}).get("allocation")
            yield from map(Allocated.of, allocation["devices"]["results"] if allocation else ())

    def _write(
        self, namespace: str, name: str, found: Allocated, parameters: Mapping[str, Any] | None
    ) -> None:
        devices: dict[str, Any] = {"results": [found.result("gpu", str(uuid4()))]}
        if parameters is not None:
            opaque = {"driver": DRIVER, "parameters": parameters}
            devices["config"] = [{"source": "FromClass", "requests": ["gpu"], "opaque": opaque}]

        def allocated(claim: dict[str, Any]) -> dict[str, Any]:
            return {**claim, "status": {"allocation": {"devices": devices}}}

        self._api.store.change(Key("resourceclaims", namespace, name), allocated)
