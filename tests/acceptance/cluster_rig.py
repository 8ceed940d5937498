"""A node of a cluster within the test: a reconciler on simulated GPUs, and its Node."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.credentials import Kubeconfig
from nodeagent.cluster.drain.hooks import ClusterHooks
from nodeagent.cluster.drain.node import DrainIntervals
from nodeagent.cluster.events import EventIntervals
from nodeagent.cluster.plan_sources.registry import make_source
from nodeagent.cluster.publisher import NodePublisher, PublisherIntervals
from nodeagent.plan.plan import Policy
from nodeagent.reconcile.event_log import EventType
from nodeagent.reconcile.plan_file import PlanFile
from nodeagent.settings import KubernetesSettings
from nodeagent.structs import replace
from nodeagent.structs import replace as replaced
from nodeagent.views.node_state import NodeState
from tests import rig
from tests.cluster.client.rig import QUICK, QUICK_WRITES
from tests.cluster.client.rig import running as running_tasks
from tests.machine_load import until
from tests.simulated_cluster.agent import PLAN, in_sync, kubeconfig, status, until_status
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.journal import Request

NODE = "n"
SOON = 60.0  # seconds that anything may take on a busy machine
# The product's times, made short; their proportions are kept.
PACE = PublisherIntervals(
    patience=0.2,
    first_answer=0.5,
    follow=replace(QUICK, silence=0.5),
    write=replace(QUICK_WRITES, interval=0.05),
    events=EventIntervals(interval=0.05, retry=(0.02, 0.16)),
)
AROUND = DrainIntervals(round_answer=0.3, list_age=0.5, restore=(0.1, 1.0))


class Member:
    """A node's loop, plan source and publisher, not running yet; `loop`: settings of its rig."""

    def __init__(
        self,
        folder: Path,
        api: ApiServer,
        *,
        name: str = NODE,
        source: str = "annotation",
        intervals: PublisherIntervals = PACE,
        answer_within: float = 2.0,
        **loop: Any,
    ) -> None:
        self.api, self.name = api, name
        self.jumped = 0.0  # seconds by which the time of day was put forward, or back
        self.token = folder / "token"
        config = folder / "kubeconfig"
        config.write_text(
            kubeconfig(api.url, token_file=self.token if self.token.exists() else None)
        )
        self.access = ClusterAccess(Kubeconfig(config), answer_within=answer_within)
        self.hooks = ClusterHooks(
            self.access,
            name,
            settings=KubernetesSettings(),
            source=source,
            policy=Policy(),
            wake=self._wake,
            report=self._report,
            intervals=AROUND,
        )
        self.rig = rig.Rig(folder, on_state=self._publish, hooks=self.hooks, **loop)
        self.publisher = NodePublisher(
            self.access,
            name,
            self.hooks,
            events=self.rig.events,
            intervals=intervals,
            now=lambda: datetime.now(UTC) + timedelta(seconds=self.jumped),
        )
        states = self.rig.node_states
        states.newest = replaced(states.newest, source=source)
        self.source = self.publisher.source = make_source(
            source,
            offer=self.rig.plan.offer,
            rounds=lambda: self.rig.state.rounds,
            follow=partial(PlanFile, folder / "plan.yaml"),
        )

    def _wake(self, reason: str) -> None:
        self.rig.control.wake(reason)

    def _report(self, kind: EventType, message: str) -> None:
        pass

    def _publish(self, state: NodeState) -> None:
        self.publisher.publish(state, self.rig.plan.offered)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with (
            self.access,
            rig.running(self.rig),
            running_tasks(self.publisher.run(), self.hooks.run(), self.source.run()),
        ):
            yield self

    # --- the plan and what came of it -----------------------------------------------------------

    def plan(self, text: str) -> str:
        self.api.annotate(self.name, **{PLAN: text})
        return text

    async def in_sync(self, text: str) -> dict[str, Any]:
        """The Node says that it is as this plan asks for, and the hardware is."""
        return await until_status(self.api, in_sync(text), node=self.name, seconds=SOON)

    async def settled(self, text: str) -> None:
        """Ask for this plan; wait until the Node says all of it and no more requests come."""
        await self.in_sync(self.plan(text))
        await until(lambda: self.conditions.get("GPUPartitionsReady", {}).get("status") == "True")
        await self.quiet()

    @property
    def status(self) -> dict[str, Any] | None:
        return status(self.api, self.name)

    @property
    def conditions(self) -> dict[str, dict[str, str]]:
        found = self.api.node(self.name)["status"]["conditions"]
        return {entry["type"]: entry for entry in found if entry["type"].startswith("GPU")}

    # --- requests -------------------------------------------------------------------------------

    async def quiet(self, seconds: float = 0.1) -> None:
        clock = asyncio.get_running_loop().time
        begun = clock()
        await until(lambda: clock() - max([begun, *(r.time for r in self.api.requests)]) >= seconds)

    def asked(self, begun: int = 0) -> Counter[str]:
        """How many requests there were since the journal had so many, by what they are about."""
        return Counter(map(_kind, self.api.requests[begun:]))


def _kind(request: Request) -> str:
    if request.watch:
        return "watch"
    part = "nodes" if "/nodes/" in request.path else request.path.rpartition("/")[2]
    return f"{'write' if request.write else 'list'} {part}"


def plan_text(mig: str, remark: str = "") -> str:
    """A plan for all GPUs; the remark gives it another digest."""
    return f"# {remark}\nversion: v1\ngpus: [{{devices: all, mig: {mig}}}]\n"


FIRST = plan_text("{1g.10gb: 7}")
