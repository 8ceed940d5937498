"""A node with a whole GPU and a divided one, and daemons on them."""

from typing import Any

from nodeagent.plan.observed import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    MigMode,
    ObservedNode,
    Placement,
)
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from nodeagent.plan.users import Pod
from nodeagent.views.mps import plain_number, share_shapes, user_id
from nodeagent.views.shapes import MpsClient, MpsDaemon, MpsMemory, MpsServer, MpsWaiting

GIB = 1 << 30


def mps_client(  # noqa: PLR0917  # what a client can have
    pid: int,
    command: str = "",
    uid: int | None = None,
    share: str = "",
    slot: str = "",
    memory_used: int | None = None,
    memory_limit: int | None = None,
    threads: float | None = None,
    findings: tuple[str, ...] = (),
    namespace: str = "",
    pod: str = "",
    container: str = "",
    script: str = "",
) -> MpsClient:
    """A client; its container is the pod's where it is in one."""
    has_memory = (memory_used, memory_limit) != (None, None)
    return MpsClient(
        pid=pid,
        command=command,
        script=script,
        user=uid,
        share=share,
        slot=slot,
        memory=MpsMemory(used=memory_used, limit=memory_limit) if has_memory else None,
        threads=None if threads is None else plain_number(threads),
        pod=Pod(namespace=namespace, name=pod, container=container) if pod else None,
        container="" if pod else container,
        findings=findings,
    )


def mps_daemon(
    device: str, state: str, wanted: WantedMps | None = None, why: str = "", **more: Any
) -> MpsDaemon:
    return MpsDaemon(
        device=device,
        state=state,
        why=why,
        **{"restarts": 0, "clients": (), **as_wanted(wanted), **more},
    )


def as_wanted(wanted: WantedMps | None) -> dict[str, Any]:
    """What a daemon shows of what it is to be."""
    if wanted is None:
        return {"user": None, "enforce": "", "shares": None}
    user, shares = user_id(wanted.account), share_shapes(wanted.sharing)
    return {"user": user, "enforce": wanted.sharing.enforce, "shares": shares}


WHOLE = Gpu(0, "GPU-0", mig=MigMode(current=False, pending=False))
DIVIDED = Gpu(
    1,
    "GPU-1",
    mig=MigMode(current=True, pending=True),
    instances=(
        GpuInstance(1, 9, "3g.40gb", Placement(0, 4), (ComputeInstance(0, "3g.40gb", 3, "MIG-a"),)),
        GpuInstance(2, 9, "3g.40gb", Placement(4, 4), (ComputeInstance(0, "3g.40gb", 3, "MIG-b"),)),
    ),
)
NODE = ObservedNode((WHOLE, DIVIDED))
SHARES = (Share("small", 4, 8192, 15.0), Share("rest", None, None, 33.3))
WANTED = WantedMps(Sharing(SHARES, "report"), Account(1000, 1000))
ANY = WantedMps(Sharing(SHARES, "terminate"), Account(0, 0, any_user=True))
CLIENT = mps_client(
    4712,
    "python",
    1000,
    "small",
    "small-0",
    memory_used=5,
    memory_limit=8 * GIB,
    threads=15.0,
    namespace="ml",
    pod="train-0",
    container="main",
)
STRAY = mps_client(4713, findings=("it has no share", "it has no memory limit"))
READY = mps_daemon(
    "GPU-0",
    "Ready",
    WANTED,
    pid=815,
    restarts=2,
    pipe_directory="/run/nodeagent/mps/GPU-0/pipe",
    since="2030-01-02T03:04:05.678Z",
    server=MpsServer(pid=816, user=1000, status="ACTIVE"),
    clients=(CLIENT,),
)
FAILED = mps_daemon(
    "MIG-b",
    "Failed",
    ANY,
    "failed 5 times in a row",
    restarts=5,
    last_lines=("first", "no CUDA-capable device is detected"),
)
WAITING = MpsWaiting(pid=99, user=1001, command="sleepy")
