"""Nodes with users, as tests of what is exported need them."""

from collections.abc import Iterable, Mapping

from nodeagent.plan import observed
from nodeagent.plan.users import Usage, User
from tests.metrics.node import gpu as identity

MIB = 1 << 20
GPU = identity(0)
SEVEN = observed.GpuInstanceProfile(
    19, 0, "1g.10gb", 1, 10 << 30, 16, 7, tuple(observed.Placement(n, 1) for n in range(8))
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


def whole(*users: User, mps: observed.DeviceDaemon | None = None) -> observed.ObservedNode:
    return observed.ObservedNode((observed.Gpu(0, GPU.uuid, usage=Usage(users), mps=mps),))


def divided(users: Mapping[int, Iterable[User]]) -> observed.ObservedNode:
    """One GPU with a 1g.10gb of each id, and who uses it; the id is the place, too."""
    instances = tuple(
        observed.GpuInstance(
            number,
            19,
            "1g.10gb",
            observed.Placement(number, 1),
            (observed.ComputeInstance(0, "1g.10gb", 1, f"MIG-{number}", usage=Usage(tuple(some))),),
        )
        for number, some in users.items()
    )
    mode = observed.MigMode(current=True, pending=True)
    return observed.ObservedNode(
        (observed.Gpu(0, GPU.uuid, mig=mode, profiles=(SEVEN,), instances=instances),)
    )
