"""Plans, daemons and clients as values, for tests of what clients meet."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from nodeagent.mps.clients.assess import ClientFacts
from nodeagent.mps.shares import DaemonSpec
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from nodeagent.structs import replace
from nodeagent.views.shapes import MpsClient, MpsMemory
from tests.views.daemons import mps_client

GPU = "GPU-cb1213a3-d6a4-be7f-0000-000000000000"
MIG = "MIG-0a1b2c3d-0000-1111-2222-333344445555"
SMALL = Share("small", 2, 8192, 15.0)
LARGE = Share("large", 1, 40960, 40.0)


def wanted(*shares: Share, enforce: str = "report", uid: int = 1000) -> WantedMps:
    """What a plan says of one device: two kinds of share if nothing else is given."""
    return WantedMps(Sharing(shares or (SMALL, LARGE), enforce), Account(uid, uid))


def spec_of(plan: WantedMps, device: str = GPU, *, pipe: str = "/run/x/pipe") -> DaemonSpec:
    return DaemonSpec(device, plan, pipe)


def daemon_spec(pipe: str, device: str, *, uid: int = 1000, gid: int = 1000) -> DaemonSpec:
    """A daemon for two kinds of share, with 4096 MiB and half the threads at most."""
    shares = Share("small", 2, 1024, 25.0), Share("large", 1, 4096, 50.0)
    return DaemonSpec(device, WantedMps(Sharing(shares, "report"), Account(uid, gid)), pipe)


def with_limits(spec: DaemonSpec, memory: int | None, threads: float) -> DaemonSpec:
    """The same daemon with one share, which has these limits."""
    sharing = Sharing((Share("one", None, memory, threads),), "report")
    return replace(spec, wanted=replace(spec.wanted, sharing=sharing))


def with_account(spec: DaemonSpec, **changes: Any) -> DaemonSpec:
    account = replace(spec.wanted.account, **changes)
    return replace(spec, wanted=replace(spec.wanted, account=account))


def facts(
    pid: int = 100,
    *,
    environment: Mapping[str, str] | None = MappingProxyType({}),
    start_time: int | None = None,
    memory_used: int | None = None,
    **client: Any,
) -> ClientFacts:
    """A client of whom nothing is known but that it is there; then changed."""
    started = pid if start_time is None else start_time
    found = mps_client(pid, **{"command": "python", "uid": 1000, **client})
    return ClientFacts(found, started, environment, memory_used=memory_used)


def memory_of(client: MpsClient) -> MpsMemory:
    return client.memory or MpsMemory()
