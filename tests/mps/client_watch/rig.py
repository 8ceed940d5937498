"""A watch that keeps its reports, and what the tests of it say of clients."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping

from nodeagent.errors import NodeagentError
from nodeagent.mps.clients.assess import Offence
from nodeagent.mps.clients.watch import ClientWatch, RunningDaemon
from nodeagent.plan.shares import MIB
from nodeagent.simulation.mps.clients import SimulatedClient
from nodeagent.views.shapes import MpsClient
from tests.mps.plans import GPU, wanted

GIB = 1024 * MIB
TERMINATE = wanted(enforce="terminate", uid=os.geteuid())
Start = Callable[..., SimulatedClient]


class Watch(ClientWatch):
    """Keeps its reports. Its driver lists the clients that daemons named last, without `unlisted`
    and with `hidden` ones, and their memory from `used`.
    """

    def __init__(self, *, grace: float = 5.0) -> None:
        self.reported: list[tuple[str, Offence]] = []
        self.used: dict[int, int] = {}
        self.asked: list[str] = []
        self.driver_fails = False
        self.named: set[int] = set()
        self.unlisted: set[int] = set()
        self.hidden: set[int] = set()
        super().__init__(
            listed=self._memory_of,
            report=lambda device, offence: self.reported.append((device, offence)),
            deadline=60.0,
            grace=grace,
        )

    async def _memory_of(self, device: str) -> Mapping[int, int | None]:
        self.asked.append(device)
        if self.driver_fails:
            raise NodeagentError("the driver does not answer")
        listed = (self.named | self.hidden) - self.unlisted
        return {pid: self.used.get(pid) for pid in listed}

    async def settle(self) -> None:
        """Wait until no client is being ended any more."""
        while ending := [t for t in asyncio.all_tasks() if t.get_name().startswith("mps end")]:
            await asyncio.wait(ending)

    def kinds(self) -> list[tuple[int, str]]:
        """Pid and kind of each report."""
        return [(offence.client.pid, offence.kind.value) for _, offence in self.reported]


async def look(watch: Watch, daemon: RunningDaemon) -> tuple[MpsClient, ...]:
    """At one daemon."""
    watch.named = {pid for _, pid in daemon.clients}
    found = await watch.check([daemon])
    assert list(found) == [daemon.device]
    return found[daemon.device]


def slot(name: str) -> dict[str, str]:
    """What the env file of a slot of the two usual shares says, but for the pipe directory."""
    memory, threads = ("40960", "40") if name.startswith("large") else ("8192", "15")
    return {
        "NODEAGENT_MPS_SLOT": f"{GPU}/{name}",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={memory}M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": threads,
    }
