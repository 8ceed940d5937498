"""What the tests of the plugin share."""

import asyncio
from collections.abc import Callable

from nodeagent.claims.model import ClaimedDevice, Result
from nodeagent.claims.serving.attempts import Operation
from nodeagent.cluster.kubelet.plugin.claim_calls import ClaimCalls, ClaimName

CLAIM = ClaimName("team", "claim-a1", "a1")


class Claims:
    """Stands in for what prepares claims.

    `begun` has the kind and the uid of each work, `prepared` the claims as they are now. Work takes
    `seconds` and gives `devices`. `errors` are raised, by uid, once; `hold()` keeps all work from
    ending until `go_on()`.
    """

    def __init__(self) -> None:
        self.begun: list[tuple[str, str]] = []
        self.prepared: set[ClaimName] = set()
        self.errors: dict[str, Exception] = {}
        self.devices: Callable[[ClaimName], tuple[ClaimedDevice, ...]] = devices_of
        self.seconds = 0.0
        self._open = asyncio.Event()
        self._open.set()

    def calls(self) -> ClaimCalls:
        return ClaimCalls(self.perform, lambda _: None)

    async def perform(self, operation: Operation, claim: ClaimName) -> tuple[ClaimedDevice, ...]:
        await self._work(operation, claim)
        if operation is Operation.PREPARE:
            self.prepared.add(claim)
            return self.devices(claim)
        self.prepared.discard(claim)
        return ()

    def hold(self) -> None:
        self._open.clear()

    def go_on(self) -> None:
        self._open.set()

    async def _work(self, kind: str, claim: ClaimName) -> None:
        self.begun.append((kind, claim.uid))
        await asyncio.sleep(self.seconds)
        await self._open.wait()
        if error := self.errors.pop(claim.uid, None):
            raise error


def devices_of(claim: ClaimName) -> tuple[ClaimedDevice, ...]:
    """One slice, in words that no two claims share."""
    cdi_id = f"nodeagent.io/claim={claim.uid}-0-mig-1g-10gb-6"
    return (claimed("main", "n/gpu-1", "mig-1g-10gb-6", cdi_id),)


def claimed(request: str, pool: str, device: str, cdi_id: str, share_id: str = "") -> ClaimedDevice:
    """A device of a claim, as far as the kubelet gets to know it."""
    return ClaimedDevice(Result(request, pool, device, share_id), "GPU-1", cdi_id)


def now() -> float:
    return asyncio.get_running_loop().time()
