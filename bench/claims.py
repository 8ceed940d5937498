"""Claims: how long a slice takes beyond the driver's own calls, and what prepared claims cost.

Calls of the simulated driver take no time, so that all of it is the agent's (and the simulator's).
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

from bench.processes import cpu_seconds, installed, proportional, resident
from bench.tables import percentile, show
from nodeagent.claims.capacity import CLIENTS, MEMORY, THREADS
from nodeagent.claims.names import DRIVER
from nodeagent.claims.serving.claim_object import ClaimObject, read_claim
from nodeagent.claims.serving.node_claims import ClaimPlaces, NodeClaims
from nodeagent.gpu.driver import Driver
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import Policy
from nodeagent.reconcile.node_controller import LastObservation
from nodeagent.reconcile.owner import GpuOwners
from nodeagent.simulation import SimulatedNode, simulated
from tests.claims.machine import Hardware, Home, claim_files, pool_of
from tests.claims.mps_rig import agent
from tests.machine_load import until
from tests.reconcile.controller_rig import NodeRig
from tests.simulated_cluster.agent import NAME, AgentProcess, command, kubeconfig
from tests.simulated_cluster.allocator import Allocated, of_profile
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.kubelet import Kubelet
from tests.simulated_cluster.kubelet_claims import Claim, DraKubelet
from tests.simulated_cluster.scheduler import Scheduler

SHARES = 48  # of one GPU
BOARDS = "h100-80gb:8"
GPUS, SLICES = 8, 7  # 1g.10gb on each
CLAIMS = 50
IDLE = 130.0  # seconds: two resyncs and two rounds of upkeep are in them
SETTLED = 10.0  # seconds without a change before that

Milliseconds = list[float]


def run() -> None:
    """Some five minutes, two of them without a change."""
    with installed():
        calls = asyncio.run(_alone())
        _show_calls(calls)
        asyncio.run(_shares())
        asyncio.run(_in_an_agent())


# --- without an agent around it -------------------------------------------------------------------


class _Costs:
    """Milliseconds, those of the processor (of all threads, with the simulator's) and driver calls
    of each prepare or release.
    """

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self.took: dict[str, Milliseconds] = {"prepare": [], "release": []}
        self.computed: dict[str, Milliseconds] = {"prepare": [], "release": []}
        self.calls: dict[str, list[int]] = {"prepare": [], "release": []}
        self.kinds: dict[str, Counter[str]] = {"prepare": Counter(), "release": Counter()}

    async def of(self, what: str, work: Awaitable[object]) -> None:
        self._node.journal.clear()
        began, computed = time.perf_counter(), time.process_time()
        await work
        self.took[what].append((time.perf_counter() - began) * 1000)
        self.computed[what].append((time.process_time() - computed) * 1000)
        self.calls[what].append(self._node.journal.total())
        self.kinds[what] += Counter(self._node.journal.counts)


async def _alone() -> _Costs:
    """Slice after slice, on GPUs in MIG mode of which everything is known."""
    with simulated(BOARDS) as node, tempfile.TemporaryDirectory() as folder:
        driver = Driver(observe_deadline=60, step_deadline=60)
        async with driver:
            hardware = Hardware(driver, LastObservation(), {})
            owners = GpuOwners(nullcontext(hardware), Policy())
            await owners.open()
            observed = await hardware.observe()
            claims = _claims(Path(folder), owners, observed)
            await claims.store.load()
            for number in range(GPUS):  # switches MIG on, and learns the profile
                await claims.prepare(*_name(number * SLICES))
                await claims.release(_uid(number * SLICES))
            costs = _Costs(node)
            for number in range(CLAIMS):
                await costs.of("prepare", claims.prepare(*_name(number)))
            for number in range(CLAIMS):
                await costs.of("release", claims.release(_uid(number)))
            await owners.close()
            return costs


def _claims(folder: Path, owners: GpuOwners, observed: ObservedNode) -> NodeClaims:
    """Those of a node whose scheduler gives slices from the last one down, GPU after GPU."""
    pools = [f"{NAME}/{gpu.uuid.lower()}" for gpu in observed.gpus]
    objects = {}
    for number in range(GPUS * SLICES):
        gpu, slot = divmod(number, SLICES)
        result = {
            "request": "gpu",
            "driver": DRIVER,
            "pool": pools[gpu],
            "device": f"mig-1g-10gb-{SLICES - 1 - slot}",
        }
        namespace, name, uid = _name(number)
        objects[name] = json.dumps(
            {
                "metadata": {"namespace": namespace, "name": name, "uid": uid},
                "status": {"allocation": {"devices": {"results": [result]}}},
            }
        )

    async def fetch(_: str, name: str) -> ClaimObject:
        return read_claim(objects[name].encode())

    async def fetch_pod(_: str, __: str) -> None:
        return None

    async def observe() -> ObservedNode:
        return observed

    return NodeClaims(
        ClaimPlaces(NAME, "boot", folder / "claims"),
        owners=owners,
        fetch=fetch,
        fetch_pod=fetch_pod,
        observe=observe,
        files=claim_files(folder, capabilities=lambda: dict(_capabilities())),
    )


def _capabilities() -> Iterator[tuple[int, tuple[int, int, int | None]]]:
    kinds = [(g, i, c) for g in range(GPUS) for i in range(15) for c in (None, *range(8))]
    return enumerate(kinds, start=3)


def _name(number: int) -> tuple[str, str, str]:
    return "team", f"claim-{number}", _uid(number)


def _uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


def _show_calls(costs: _Costs) -> None:
    show(
        f"{CLAIMS} claims of 1g.10gb one after the other on {BOARDS}, without an agent around them",
        [
            *("call", "median, ms", "p90, ms", "slowest, ms", "processor, median ms"),
            *("driver calls, mean", "most"),
        ],
        [
            [
                *(what, *_figures(costs.took[what]), percentile(costs.computed[what], 0.5)),
                *(sum(calls) / len(calls), max(calls)),
            ]
            for what, calls in costs.calls.items()
        ],
    )
    names = costs.kinds["prepare"] | costs.kinds["release"]
    show(
        "their driver calls by function, for each claim",
        ["function", *costs.kinds],
        [
            [name, *(kinds[name] / CLAIMS for kinds in costs.kinds.values())]
            for name, _ in names.most_common()
        ],
    )


def _figures(took: Milliseconds) -> tuple[float, float, float]:
    return percentile(took, 0.5), percentile(took, 0.9), max(took)


# --- shares of one GPU ----------------------------------------------------------------------------


async def _shares() -> None:
    """The first share starts a daemon of the stand-in, and the others come beside it: its program
    is called for none of these, so that all of the time is the agent's.
    """
    consumed = {MEMORY: 512 << 20, THREADS: 0, CLIENTS: 1}
    with NodeRig() as machine, simulated("l40s:1", state=machine.state) as node:
        home = Home(machine.folder / "home")
        share = Allocated(pool_of(node), "gpu", consumed)
        names = [home.claim(number, share) for number in range(SHARES)]
        async with agent(home, machine, share="memory") as (claims, _, _):
            first, *others = [await _milliseconds(claims.prepare(*name)) for name in names]
            ends = [await _milliseconds(claims.release(uid)) for *_, uid in reversed(names[1:])]
            await claims.release(names[0][2])
    show(
        f"{SHARES} shares of one l40s one after the other, without a kubelet",
        ["call", "median, ms", "p90, ms", "slowest, ms"],
        [
            ["prepare the first, which starts the daemon", *_figures([first])],
            ["prepare a further one", *_figures(others)],
            ["release one of several", *_figures(ends)],
        ],
    )


async def _milliseconds(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1000


# --- in an agent, over its sockets ----------------------------------------------------------------


async def _in_an_agent() -> None:
    """The kubelet's model calls an agent in a process of its own."""
    async with _cluster() as (agent, api, kubelet):
        scheduler, rows = Scheduler(api), []
        claims = [_scheduled(scheduler, number) for number in range(CLAIMS)]
        for what, call in (("prepare", kubelet.prepare), ("release", kubelet.release)):
            spent = cpu_seconds(agent.pid)
            took = [await _timed(call, claim) for claim in claims]
            mean = (cpu_seconds(agent.pid) - spent) / CLAIMS * 1000
            rows.append([f"{what}, one after the other", *_figures(took), mean])
        for claim in claims:
            scheduler.delete(claim.namespace, claim.name)
        claims = [_scheduled(scheduler, number) for number in range(CLAIMS)]
        for what, call in (("prepare", kubelet.prepare), ("release", kubelet.release)):
            spent = cpu_seconds(agent.pid)
            took = list(await asyncio.gather(*(_timed(call, claim) for claim in claims)))
            mean = (cpu_seconds(agent.pid) - spent) / CLAIMS * 1000
            rows.append([f"{what}, all at once", *_figures(took), mean])
        show(
            f"{CLAIMS} claims of 1g.10gb on {BOARDS}, in an agent as its kubelet sees it",
            ["call", "median, ms", "p90, ms", "slowest, ms", "agent's processor, mean ms"],
            rows,
        )
        for claim in claims:
            scheduler.delete(claim.namespace, claim.name)
        for number in range(GPUS * SLICES):
            claim = _scheduled(scheduler, number)
            await kubelet.prepare(claim.name, claim)
        await _show_idle(agent, api)


@asynccontextmanager
async def _cluster() -> AsyncIterator[tuple[AgentProcess, ApiServer, DraKubelet]]:
    """An agent that offers all of its GPUs."""
    with tempfile.TemporaryDirectory(prefix="na-") as directory:
        folder = Path(directory)
        settings = {
            "NODEAGENT_DRA_MODE": "dynamic",
            "NODEAGENT_KUBELET_DIR": f"{folder}/kubelet",
            "NODEAGENT_CDI_DIR": f"{folder}/cdi",
            "NODEAGENT_KUBELET_USE": "always",
            "NODEAGENT_KUBELET_SOCKET": f"{folder}/pod-resources/kubelet.sock",
        }
        async with (
            ApiServer() as api,
            Kubelet(folder / "pod-resources") as listing,
            DraKubelet(folder / "kubelet", pod_resources=listing) as kubelet,
        ):
            api.add_node(NAME)
            (folder / "kubeconfig").write_text(kubeconfig(api.url))
            arguments = command(BOARDS, folder)
            async with AgentProcess(arguments, folder, settings=settings) as agent:
                await until(lambda: kubelet.plugins.get(DRIVER))
                await until(lambda: len(api.store.all("resourceslices")) == 2 * GPUS)
                yield agent, api, kubelet


def _scheduled(scheduler: Scheduler, number: int) -> Claim:
    namespace, name, _ = _name(number)
    made = scheduler.claim(namespace, name)
    if not scheduler.allocate(namespace, name, of_profile("1g.10gb")):
        raise RuntimeError(f"claim {number} found no device")
    return Claim(name, made["metadata"]["uid"], namespace)


async def _timed(call: Callable[..., Awaitable[None]], claim: Claim) -> float:
    return await _milliseconds(call(claim.name, claim))


async def _show_idle(agent: AgentProcess, api: ApiServer) -> None:
    written = -1  # Events are written two a second, for minutes after so many claims
    while written != (now := sum(one.write for one in api.requests)):
        written = now
        await asyncio.sleep(SETTLED)
    began, spent = len(api.requests), cpu_seconds(agent.pid)
    await asyncio.sleep(IDLE)
    share = (cpu_seconds(agent.pid) - spent) / IDLE
    asked = Counter("watches" if one.watch else one.path for one in api.requests[began:])
    show(
        f"The same agent with {GPUS * SLICES} prepared claims, {IDLE:.0f} s without a change",
        ["figure", "value"],
        [
            ["resident memory, MiB", resident(agent.pid) / 2**20],
            ["the same with its part alone of shared pages, MiB", proportional(agent.pid) / 2**20],
            ["CPU, % of a core", share * 100],
            *([f"requests to the API server: {what}", n] for what, n in sorted(asked.items())),
        ],
    )
