"""A node with a whole GPU and a divided one, and daemons on them."""

from __future__ import annotations

from datetime import UTC, datetime

from nodeagent.plan.observed import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    MigMode,
    ObservedNode,
    Placement,
)
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from nodeagent.views.mps_state import ClientState, DaemonState
from nodeagent.views.shapes import MpsServer, MpsWaiting

GIB = 1 << 30
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
CLIENT = ClientState(
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
STRAY = ClientState(4713, findings=("it has no share", "it has no memory limit"))
READY = DaemonState(
    "GPU-0",
    "Ready",
    WANTED,
    pid=815,
    restarts=2,
    pipe_directory="/run/nodeagent/mps/GPU-0/pipe",
    since=datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    server=MpsServer(pid=816, user=1000, status="ACTIVE"),
    clients=(CLIENT,),
)
FAILED = DaemonState(
    "MIG-b",
    "Failed",
    ANY,
    "failed 5 times in a row",
    restarts=5,
    last_lines=("first", "no CUDA-capable device is detected"),
)
WAITING = MpsWaiting(pid=99, user=1001, command="sleepy")
