"""Nodes with users, as tests of what is exported need them."""

from collections.abc import Iterable, Mapping

from nodeagent.plan.observed import (
    ComputeInstance,
    DeviceDaemon,
    Gpu,
    GpuInstance,
    GpuInstanceProfile,
    MigMode,
    ObservedNode,
    Placement,
)
from nodeagent.plan.users import Usage, User
from tests.metrics.node import gpu as identity

MIB = 1 << 20
GPU = identity(0)
SEVEN = GpuInstanceProfile(
    19, 0, "1g.10gb", 1, 10 << 30, 16, 7, tuple(Placement(n, 1) for n in range(8))
)


def user(
    pid: int, pod: str = "", *, memory: int | None = None, container: str = "main", source: str = ""
) -> User:
    """A process, or with the pid 0 an allocation; `memory` in MiB."""
    return User(
        pid,
        source=source or ("process" if pid else "kubelet"),
        memory=None if memory is None else memory * MIB,
        namespace="team" if pod else "",
        pod=pod,
        container=container if pod else "",
    )


def whole(*users: User, mps: DeviceDaemon | None = None) -> ObservedNode:
    return ObservedNode((Gpu(0, GPU.uuid, usage=Usage(users), mps=mps),))


def divided(users: Mapping[int, Iterable[User]]) -> ObservedNode:
    """One GPU with a 1g.10gb of each id, and who uses it; the id is the place, too."""
    instances = tuple(
        GpuInstance(
            number,
            19,
            "1g.10gb",
            Placement(number, 1),
            (ComputeInstance(0, "1g.10gb", 1, f"MIG-{number}", usage=Usage(tuple(some))),),
        )
        for number, some in users.items()
    )
    mode = MigMode(current=True, pending=True)
    return ObservedNode((Gpu(0, GPU.uuid, mig=mode, profiles=(SEVEN,), instances=instances),))
