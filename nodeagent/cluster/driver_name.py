"""Whether NVIDIA's DRA driver serves the node, which this agent's may be called as in its place."""

import asyncio
import re
from pathlib import Path

from nodeagent.claims.names import NVIDIA_DRIVER
from nodeagent.cluster.client import requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.drain.other_managers import other_allocator
from nodeagent.cluster.kubelet.plugin.sockets import served
from nodeagent.cluster.slice_publisher import read_slice
from nodeagent.plan.problems import Code, Problem

# Of this agent, which `nodeagent check` may run beside; NVIDIA's has a pod's uid there or nothing.
_OWN = re.compile(r"-[0-9a-f]{8}-reg\.sock")


async def name_taken(access: ClusterAccess, node: str, kubelet_dir: Path) -> Problem | None:
    """What shows that NVIDIA's driver has its name on the node; None: nothing does. Raises a
    ClusterFault or PathRefused where that is not known.
    """
    registry = kubelet_dir / "plugins_registry"
    names = await asyncio.to_thread(served, registry, f"{NVIDIA_DRIVER}*reg.sock")
    why = next((f"{registry / name} is served" for name in names if not _OWN.search(name)), "")
    if not why:
        slices = (await access.listed(requests.list_slices(node), read_slice)).items
        found = other_allocator({one.driver for one in slices if not one.is_own}, {}, node)
        why = found.message if found else ""
    return Problem.of(Code.OWNED, "driverName", name=NVIDIA_DRIVER, why=why) if why else None
