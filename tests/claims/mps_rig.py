"""An agent with claims and real MPS stand-ins on a simulated node, and claims with MPS."""

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from nodeagent.claims.model import ClaimedDevice
from nodeagent.claims.serving.cdi import file_name
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.claims.serving.node_claims import NodeClaims
from nodeagent.claims.upkeep.upkeep import Upkeep
from nodeagent.plan.desired import SharedBy
from nodeagent.simulation.mps.clients import SimulatedClient
from tests.claims.machine import UIDS, Home, PodsOfProcesses, pool
from tests.claims.samples import config_json, device_config, share_json
from tests.mps.fleet_rig import US
from tests.reconcile.controller_rig import Agent, NodeRig
from tests.rig import Rig

GIB = 1 << 30
DEVICE = "mig-1g-10gb-2"
LIMITS = {"clients": {"memory": "2Gi", "threads": 50}}


@asynccontextmanager
async def agent(
    home: Home, machine: NodeRig, *, share: SharedBy = "off", pods: Mapping[int, str] = {}
) -> AsyncIterator[tuple[NodeClaims, Rig, Agent]]:
    """One agent's life; daemons outlive it. `pods` are those of processes, by pid."""
    user = f"{US}:{US if os.geteuid() == 0 else os.getegid()}"
    async with machine.agent(allocations=PodsOfProcesses(pods)) as parts:
        daemons = ClaimDaemons(user, machine.run_dir, False, parts.fleet.poll)
        driver = nullcontext(parts.node)
        async with home.agent(driver=driver, daemons=daemons, share=share) as (claims, rig):
            yield claims, rig, parts


def shared(home: Home, rig: Rig, number: int, device: str, **mps: Any) -> tuple[str, str, str]:
    """A claim whose class has this MPS; what the kubelet calls it."""
    name = home.claim(number, (pool(rig), device))
    config = config_json(device_config(mps=mps), "FromClass")
    home.claims[name[:2]]["status"]["allocation"]["devices"]["config"] = [config]
    return name


def share(
    home: Home, rig: Rig, number: int, *gpus: int, device: str = "gpu"
) -> tuple[str, str, str]:
    """A claim with 8Gi of the device of the GPU, or of each of these; what the kubelet calls it."""
    pools = [pool(rig, gpu) for gpu in gpus or (0,)]
    name = home.claim(number, *((each, device) for each in pools))
    results = [
        share_json(pool=each, device=device, shareID=f"{name[2]}{n or ''}")
        for n, each in enumerate(pools)
    ]
    home.claims[name[:2]]["status"]["allocation"]["devices"]["results"] = results
    return name


def given(home: Home, number: int = 0) -> list[tuple[Any, dict[str, str]]]:
    """What containers of a claim get by the CDI file for each device: edits, and variables."""
    devices = json.loads((home.cdi / file_name(UIDS[number])).read_text())["devices"]
    edits = [entry["containerEdits"] for entry in devices]
    return [(one, dict(text.split("=", 1) for text in one["env"])) for one in edits]


def client(home: Home, machine: NodeRig, device: ClaimedDevice) -> SimulatedClient:
    """A CUDA program in a container of the first claim, with what its CDI file gives."""
    edits, environment = given(home)[0]
    pipes = environment["CUDA_MPS_PIPE_DIRECTORY"]
    assert {m["containerPath"]: m["hostPath"] for m in edits["mounts"]} == {
        pipes: pipes,
        "/dev/shm": "/dev/shm",
    }
    at = device.uuid or 0
    made = SimulatedClient(
        Path(pipes), uid=US, environment=environment, state=machine.state, device=at
    )
    made.wait_until_accepted(60)
    return made


async def unresolved(claims: NodeClaims, home: Home, rig: Rig) -> list[str]:
    await rig.round()
    upkeep = Upkeep(claims, allocations=home.allocations, planned=frozenset)
    return [problem.message for problem in await upkeep.round()]
