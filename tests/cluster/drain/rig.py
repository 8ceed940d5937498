"""What the tests of the cluster around a change share: an agent's part of it, without the loop.

The tests say what the loop would: which plan, what was seen, when a round begins and ends.
"""

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.drain.hooks import ClusterHooks
from nodeagent.cluster.drain.node import DrainIntervals
from nodeagent.cluster.node import KeptNode
from nodeagent.plan.desired import DesiredGpu, DesiredNode, PlanDocument
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.plan import NodePlan, Policy, Verdict
from nodeagent.plan.planner import plan
from nodeagent.plan.problems import Problem
from nodeagent.plan.users import Usage, User
from nodeagent.reconcile.active_plan import PlanEvaluation
from nodeagent.reconcile.event_log import EventType
from nodeagent.settings import KubernetesSettings
from nodeagent.structs import replace
from tests.cluster.client.rig import QUICK, kubeconfig, running
from tests.machine_load import until
from tests.plan.cards import card, wanted, with_instances
from tests.simulated_cluster.api_server import ApiServer

NODE = "n"
DEPLOY = "nvidia.com/gpu.deploy."
PLUGIN = {"app": "nvidia-device-plugin-daemonset"}
MIXED = {"nvidia.com/mig.strategy": "mixed", "nvidia.com/gfd.timestamp": "1"}
THREE = "nvidia.com/mig-3g.40gb"
PACE = DrainIntervals(
    round_answer=2.0,
    list_age=0.0,
    answer=2.0,
    notify=1.0,
    prepare=(0.1, 0.4),
    restore=(0.02, 0.1),
    evict=(0.1, 0.4),
    leaving_pods=(0.01, 0.05),
    first_look=0.01,
)

EMPTY = card("h100-80gb")
BEFORE = with_instances(EMPTY, [("7g.80gb", 0)])
AFTER = with_instances(EMPTY, [("3g.40gb", 0), ("3g.40gb", 4)])
TWO_HALVES = wanted(EMPTY, [("3g.40gb", 2)])


def judged(
    gpus: Iterable[Gpu], asked: DesiredGpu = TWO_HALVES, *, config: str | None = None
) -> tuple[PlanEvaluation, ObservedNode]:
    """What the loop would make of a plan that asks this of each of the GPUs."""
    observed = ObservedNode(tuple(gpus))
    desired = DesiredNode({gpu.key: asked for gpu in observed.gpus}, "sha256:1")
    document = PlanDocument((), "sha256:1", device_plugin_config=config)
    return PlanEvaluation(plan(desired, observed), document, desired), observed


def used(gpu: Gpu, *pods: str) -> Gpu:
    """The GPU with its instances used by processes of these pods of the namespace team in turn; ""
    is a process of no pod, and "-" stands for no use.
    """
    usages = {}
    for number, (instance, pod) in enumerate(zip(gpu.instances, pods, strict=False)):
        user = User(100 + number, "python", namespace="team" if pod else "", pod=pod)
        usages[instance.id] = Usage() if pod == "-" else Usage((user,))
    return gpu.with_mig_devices(
        lambda instance, device: replace(device, usage=usages.get(instance.id, Usage()))
    )


def todo_of(evaluation: PlanEvaluation) -> NodePlan:
    assert evaluation.plan is not None
    gpus = tuple(gpu for gpu in evaluation.plan.gpus if gpu.verdict is Verdict.APPLICABLE)
    return replace(evaluation.plan, gpus=gpus)


@dataclass
class Agent:
    """An agent's hooks, and what they said: `changes` of the Node and of pods, and the rest."""

    around: ClusterHooks
    woken: list[str] = field(default_factory=list)
    reported: list[tuple[EventType, str]] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)

    async def round(
        self, before: Gpu = BEFORE, after: Gpu = AFTER, *, config: str | None = None
    ) -> tuple[Problem, ...]:
        """What the loop does: look, ask, prepare, change, look, settle. Why it did not, if so."""
        evaluation, observed = judged([before], config=config)
        todo = todo_of(evaluation)
        problems = await self.around.objections(evaluation, todo, observed)
        if not problems and todo.gpus:
            problems = await self.around.prepare(todo)
        if not problems:
            evaluation, observed = judged([after], config=config)
        self.around.after_round(evaluation, observed)
        return problems

    async def prepare(self) -> tuple[Problem, ...]:
        return await self.around.prepare(todo_of(judged([BEFORE])[0]))

    def codes(self) -> list[str]:
        return [problem.code for problem in self.around.problems]


@contextlib.asynccontextmanager
async def agent(
    server: ApiServer,
    folder: Path,
    *,
    source: str = "annotation",
    intervals: DrainIntervals = PACE,
    **settings: Any,
) -> AsyncIterator[Agent]:
    """An agent of the node, at work within the block; ended as by a crash."""
    given = {"pods_deadline": 0.15, "allocatable_deadline": 0.15, **settings}
    async with ClusterAccess(kubeconfig(folder, server.url), answer_within=2.0) as access:
        woken: list[str] = []
        reported: list[tuple[EventType, str]] = []
        changes: list[str] = []

        def report(kind: EventType, message: str) -> None:
            if kind in (EventType.NODE_CHANGED, EventType.PLUGIN_RESTARTED):
                changes.append(message)
            else:
                reported.append((kind, message))

        around = ClusterHooks(
            access,
            NODE,
            settings=KubernetesSettings(**given),
            source=source,
            policy=Policy(),
            wake=woken.append,
            report=report,
            intervals=intervals,
        )
        follower = KeptNode(access, NODE, on_view=around.observe, watches=QUICK)
        async with running(follower.run(), around.run()):
            if server.port:
                await until(lambda: server.faults.watching)
            yield Agent(around, woken, reported, changes)


def labels(server: ApiServer, *names: str) -> dict[str, str]:
    """The deploy labels of the Node, or those named."""
    found: Mapping[str, str] = server.node(NODE)["metadata"]["labels"]
    return {
        key.removeprefix(DEPLOY): value
        for key, value in found.items()
        if key.startswith(DEPLOY) or key in names
    }


def marks(server: ApiServer) -> Mapping[str, str]:
    found: Mapping[str, str] = server.node(NODE)["metadata"].get("annotations", {})
    return found


def asked(server: ApiServer) -> list[str]:
    """The requests so far but for those of following the Node, as `VERB path`."""
    return [
        f"{request.method} {request.path}"
        for request in server.requests
        if not request.watch and "/events" not in request.path
    ]


def offer(server: ApiServer, **amounts: str) -> None:
    """The kubelet says what the node offers; names without their `nvidia.com/`."""
    known = server.node(NODE)["status"]["allocatable"]
    gone: dict[str, str | None] = dict.fromkeys(known)
    gone |= {f"nvidia.com/{name}": amount for name, amount in amounts.items()}
    server.patch_node(NODE, {"status": {"allocatable": gone}})
