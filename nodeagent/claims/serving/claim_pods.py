"""Which pods have each claim, by what the API server and the kubelet say. Pure but for its clock.

The claim's `reservedFor` is known before its devices are made; the kubelet lists pods and
containers as soon as they are ready.
"""

import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from nodeagent.claims.model import Allocated, ClaimRecord
from nodeagent.claims.serving.claim_object import ClaimObject
from nodeagent.plan.users import Pod, PodName

ClaimKey = tuple[str, str]  # namespace and name

RECENT: Final = 10.0  # seconds for which the API server's answer counts as its present one


class ClaimPods:
    """The pods of all claims of this node. `clock` gives seconds and does not jump."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read: dict[ClaimKey, tuple[float, ClaimObject | None]] = {}
        self._listed: dict[ClaimKey, list[Pod]] = {}
        self.version = 0  # another one whenever `of` may answer otherwise

    def was_read(self, key: ClaimKey, claim: ClaimObject | None) -> None:
        """Record what the API server has of the claim now; None: it is gone."""
        self._read[key] = (self._clock(), claim)
        self.version += 1

    def recent(self, key: ClaimKey) -> ClaimObject | None:
        """What the API server had of the claim a moment ago; None: no claim, or not asked."""
        read_at, claim = self._read.get(key, (0.0, None))
        return claim if self._clock() - read_at < RECENT else None

    def observe(self, allocations: Iterable[Allocated], known: Collection[ClaimKey]) -> bool:
        """All that the kubelet lists now; whether it is new. Other claims than the `known` ones
        are forgotten.
        """
        containers: dict[ClaimKey, dict[str, set[str]]] = {}
        for one in allocations:
            pods = containers.setdefault((one.namespace, one.claim), {})
            pods.setdefault(one.pod, set()).add(one.container)
        before, self._listed = (
            self._listed,
            {
                key: [_pod(key[0], name, inside) for name, inside in sorted(pods.items())]
                for key, pods in containers.items()
            },
        )
        self._read = {key: pods for key, pods in self._read.items() if key in known}
        self.version += 1
        return self._listed != before

    def of(self, key: ClaimKey) -> list[Pod]:
        """The kubelet's list counts where it has the claim."""
        if listed := self._listed.get(key):
            return listed
        _, claim = self._read.get(key, (0.0, None))
        return [_pod(key[0], name, set()) for name, _ in claim.pods] if claim else []

    def names(self, *records: ClaimRecord) -> frozenset[PodName]:
        """The pods that have any of these claims."""
        keys = ((record.namespace, record.name) for record in records)
        return frozenset(PodName(pod.namespace, pod.name) for key in keys for pod in self.of(key))


def _pod(namespace: str, name: str, containers: set[str]) -> Pod:
    """The pod, with its container where only one has the claim."""
    container = next(iter(containers)) if len(containers) == 1 else ""
    return Pod(namespace=namespace, name=name, container=container)
