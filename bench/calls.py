"""How much of the product is entered for one thing: calls, functions and files, in a running agent.

The agent is in a cluster on simulated GPUs, with periods of an hour: what is counted is what the
event brings about, until nothing has come of it for a while. `python -m bench.calls FILE` also
writes the calls of each function of each event, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.tables import show
from nodeagent.claims.names import DRIVER
from tests.agent_environment import asked
from tests.machine_load import until
from tests.simulated_cluster.agent import (
    NAME,
    PLAN,
    AgentProcess,
    command,
    in_sync,
    kubeconfig,
    until_status,
)
from tests.simulated_cluster.allocator import of_profile
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.kubelet import Kubelet
from tests.simulated_cluster.kubelet_claims import Claim, DraKubelet
from tests.simulated_cluster.scheduler import Scheduler

BOARDS = "h100-80gb:2"
QUIET = 2.0  # seconds in which nothing comes of it any more
_SETTINGS = {
    "NODEAGENT_RESYNC_INTERVAL": "1h",
    "NODEAGENT_SAMPLE_INTERVAL": "1h",
    "NODEAGENT_SAMPLE_SLOW_INTERVAL": "1h",
    "NODEAGENT_MPS_FIRST_DELAY": "100ms",
}
_ONE = "version: v1\ngpus: [{devices: [0], mig: {3g.40gb: 1}}]\n"
_TWO = "version: v1\ngpus: [{devices: [0], mig: {3g.40gb: 1, 1g.10gb: 1}}]\n"
_SHARED = "version: v1\ngpus: [{devices: [0], mps: {replicas: 2}}]\n"

Calls = dict[str, int]


def run() -> None:
    """Half a minute."""
    rows = [
        [
            event,
            sum(calls.values()),
            len(calls),
            len({function.partition(":")[0] for function in calls}),
        ]
        for event, calls in asyncio.run(counted()).items()
    ]
    show("The product's code in a running agent", ["event", "calls", "functions", "files"], rows)


async def counted() -> dict[str, Calls]:
    """The calls of each function, by event."""
    found: dict[str, Calls] = {}
    async with _agent(_ONE) as node:
        found[f"{QUIET:g} s without an event"] = await node.calls()
        await node.plan(_TWO)
        found["a plan that creates one instance"] = await node.calls()
        await node.get("/metrics")
        found["a scrape"] = await node.calls()
    async with _agent(_ONE, with_claims=True) as node:
        claim = node.scheduled()
        await node.calls()
        await node.kubelet.prepare(claim.name, claim)
        found["a claim's slice is prepared"] = await node.calls()
        await node.kubelet.release(claim.name, claim)
        found["it is released"] = await node.calls()
    async with _agent(_SHARED) as node:
        pid = await node.daemon()
        await node.calls()
        os.kill(pid, signal.SIGKILL)
        await node.daemon(but=pid)
        found["an MPS daemon killed, until it is Ready"] = await node.calls()
    return found


class _Node:
    """The node of an agent that counts its calls."""

    def __init__(self, folder: Path, agent: AgentProcess, api: ApiServer, kubelet: DraKubelet):
        self._folder = folder
        self._agent = agent
        self._api = api
        self.kubelet = kubelet

    async def calls(self) -> Calls:
        """Those since the last time, once nothing comes of it any more."""
        await asyncio.sleep(QUIET)
        file = self._folder / "calls.json"
        file.unlink(missing_ok=True)
        os.kill(self._agent.pid, signal.SIGUSR1)
        await until(file.exists)
        counts: Calls = json.loads(file.read_text())
        return counts

    async def plan(self, text: str) -> None:
        """Ask for it, and await that the Node says that it is so."""
        self._api.annotate(NAME, **{PLAN: text})
        await until_status(self._api, in_sync(text))

    def scheduled(self) -> Claim:
        """A claim with a slice of the last GPU, which no plan names."""
        scheduler = Scheduler(self._api)
        made = scheduler.claim("team", "one")
        if not scheduler.allocate("team", "one", of_profile("2g.20gb")):
            raise RuntimeError("no device for the claim")
        return Claim("one", made["metadata"]["uid"], "team")

    async def get(self, path: str) -> str:
        """An answer over the agent's socket."""
        return (await asyncio.to_thread(asked, self._folder, path))[1]

    async def daemon(self, but: int = 0) -> int:
        """The process of the only daemon, once that is Ready in another one than this."""
        while True:
            await asyncio.sleep(QUIET / 2)  # what it takes to answer is counted, too
            (daemon,) = json.loads(await self.get("/v1/mps"))["daemons"]
            if daemon["state"] == "Ready" and daemon["pid"] != but:
                return int(daemon["pid"])


@asynccontextmanager
async def _agent(plan: str, *, with_claims: bool = False) -> AsyncIterator[_Node]:
    """One that is as its plan says, and that has offered its other GPU where it serves claims."""
    with tempfile.TemporaryDirectory(prefix="na-", dir="/tmp") as directory:
        folder = Path(directory)
        async with (
            ApiServer() as api,
            Kubelet(folder / "pod-resources") as listing,
            DraKubelet(folder / "kubelet", pod_resources=listing) as kubelet,
        ):
            api.add_node(NAME)
            api.annotate(NAME, **{PLAN: plan})
            (folder / "kubeconfig").write_text(kubeconfig(api.url))
            python, _, _, *arguments = command(BOARDS, folder)
            traced = [python, "-m", "bench.calls_agent", str(folder / "calls.json"), *arguments]
            async with AgentProcess(
                traced, folder, settings=_settings(folder, with_claims)
            ) as agent:
                node = _Node(folder, agent, api, kubelet)
                await until_status(api, in_sync(plan))
                if with_claims:
                    await until(lambda: kubelet.plugins.get(DRIVER))
                    await until(lambda: api.store.all("resourceslices"))
                await node.calls()
                yield node


def _settings(folder: Path, with_claims: bool) -> dict[str, str]:
    """The agent's, as variables; other users may reach its folder, as daemons run as one."""
    folder.chmod(0o755)
    return {
        **_SETTINGS,
        "NODEAGENT_DRA_MODE": "dynamic" if with_claims else "off",
        "NODEAGENT_KUBELET_USE": "always" if with_claims else "never",
        "NODEAGENT_KUBELET_DIR": f"{folder}/kubelet",
        "NODEAGENT_CDI_DIR": f"{folder}/cdi",
        "NODEAGENT_KUBELET_SOCKET": f"{folder}/pod-resources/kubelet.sock",
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser("bench.calls", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("json", nargs="?", type=Path, help="write each function's calls here")
    target = parser.parse_args().json
    if target:
        text = json.dumps(asyncio.run(counted()), indent=1, sort_keys=True)
        target.write_text(text + "\n")
    else:
        run()
