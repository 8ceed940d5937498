"""What the services of one agent have in common, made before all of them."""

import asyncio
from typing import Self

from nodeagent.app.paths import Paths
from nodeagent.cluster.client.presence import runs_as
from nodeagent.errors import UsageError
from nodeagent.plan.plan import Policy
from nodeagent.processor_waits import RunningTime
from nodeagent.reconcile.event_log import EventLog
from nodeagent.reconcile.loop_control import Heartbeats, LoopControl
from nodeagent.reconcile.node_controller import LastObservation
from nodeagent.settings import PlanSettings, Settings
from nodeagent.signals import Signal
from nodeagent.structs import Struct, replace
from nodeagent.views.node_state import NodeState


class Shared(Struct, frozen=True):
    """What services share. `states`: the node as the loop left it, `observation`: as seen last."""

    settings: Settings
    paths: Paths
    in_cluster: bool
    events: EventLog
    control: LoopControl
    states: Signal[NodeState]
    heartbeats: Heartbeats
    observation: LastObservation

    @classmethod
    def of(cls, settings: Settings, paths: Paths) -> Self:
        """Make them in the event loop; raises UsageError for a source that needs a cluster."""
        how = runs_as(settings.kubernetes)
        source = source_of(settings.plan, in_cluster=bool(how))
        return cls(
            settings,
            paths,
            bool(how),
            EventLog(),
            LoopControl(),
            Signal(NodeState(settings.node_name, source, runs_as=how)),
            Heartbeats(RunningTime(asyncio.get_running_loop().time)),
            LastObservation(),
        )

    @property
    def policy(self) -> Policy:
        return replace(self.settings.policy, evicts=self.in_cluster)


def source_of(plan: PlanSettings, *, in_cluster: bool) -> str:
    """The source in force; raises UsageError for one that there is no cluster for."""
    if plan.source == "auto":
        return "annotation" if in_cluster else "file"
    if plan.source != "file" and not in_cluster:
        raise UsageError.of("noCluster", source=plan.source)
    return plan.source
