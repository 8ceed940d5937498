"""What the kubelet says is allocated, as values. Light: whoever imports this pays for no gRPC."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class PodName:
    """A pod as the kubelet names it here; it does not tell the pod's uid."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Holding:
    """The devices of one resource that one container holds, running or about to start."""

    pod: PodName
    container: str
    resource: str
    device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """A device that a container holds through a resource claim (DRA)."""

    pod: PodName
    container: str
    claim: PodName  # a claim has a namespace and a name, as a pod has
    driver: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class Allocations:
    """Everything that the kubelet says is allocated."""

    holdings: tuple[Holding, ...]
    claimed: tuple[ClaimedDevice, ...]

    def without(self, finished: Collection[PodName]) -> Allocations:
        """The allocations, less those of pods that are known to have finished.

        Kubelets before 1.34 also list pods that have succeeded or failed, whose devices may
        already belong to another pod, and the answer does not say which they are. Only a source
        that knows the pods' phases may name them here; a pod that nobody vouches for stays.
        """
        return Allocations(
            tuple(one for one in self.holdings if one.pod not in finished),
            tuple(one for one in self.claimed if one.pod not in finished),
        )


@dataclass(frozen=True, slots=True)
class Allocatable:
    """The devices of one resource that device plugins offer, allocated or not.

    Empty for a while after the kubelet restarts: until the plugins have registered again.
    """

    resource: str
    device_ids: tuple[str, ...]
