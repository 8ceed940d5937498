"""The plan's source: which one is in force, and how another takes its place while the agent runs.

Whatever the new source has to say, the last good plan stays in force until it has said something
that is accepted. So a change of the source alone changes nothing on the GPUs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.errors import NodeagentError, UsageError
from nodeagent.files.watch import changes
from nodeagent.reconcile.event_log import EventLog, EventType
from nodeagent.reconcile.loop_control import Heartbeats, LoopControl, NodeStates
from nodeagent.reconcile.plan_file import PlanFile
from nodeagent.settings import PlanSettings, Settings
from nodeagent.structs import replace

if TYPE_CHECKING:
    from nodeagent.app.cluster_service import ClusterService
    from nodeagent.cluster.plan_sources.node_source import NodeSource

_WATCH = "plan file's watch"
_MARGIN = 30.0  # seconds that a look at the plan file may be late


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """Where settings come from; `load` reads all of their sources anew and may block."""

    path: Path
    load: Callable[[], Settings]


def source_of(plan: PlanSettings, *, in_cluster: bool) -> str:
    """The source in force; raises UsageError for one that there is no cluster for."""
    if plan.source == "auto":
        return "annotation" if in_cluster else "file"
    if plan.source != "file" and not in_cluster:
        raise UsageError(
            f"plan.source is {plan.source}, and there is no cluster to read it from",
            remedy="name a kubeconfig (kubernetes.kubeconfig), or set plan.source: file",
        )
    return plan.source


@dataclass
class PlanService:
    """Follows the plan's source while `run` runs."""

    settings: Settings
    settings_file: SettingsFile | None
    control: LoopControl
    states: NodeStates
    cluster: ClusterService | None
    hearts: Heartbeats
    events: EventLog

    async def run(self) -> None:
        """Follow the source of the settings, and another when they name another."""
        plan = self.settings.plan
        while True:
            async with asyncio.TaskGroup() as group:
                following = group.create_task(self._follow(plan), name="follow the plan's source")
                plan = await self._another(plan)
                following.cancel()
            source = source_of(plan, in_cluster=self.cluster is not None)
            message = f"the plan comes from another source now: {source}"
            self.events.add(EventType.PLAN_SOURCE, message)
            self.states.newest = replace(self.states.newest, source=source)
            self.control.nudge("another plan source")

    async def _follow(self, plan: PlanSettings) -> None:
        source = source_of(plan, in_cluster=self.cluster is not None)
        try:
            await self._made(source, plan).run()
        finally:
            self.hearts.forget(_WATCH)

    def _made(self, source: str, plan: PlanSettings) -> PlanFile | NodeSource:
        follow = partial(
            PlanFile, plan.file, recheck_every=self.settings.resync.interval, alive=self._alive
        )
        followed = self.cluster.use(source, follow) if self.cluster else None
        return followed or follow(self.control.offer, configuration=plan.name)

    def _alive(self) -> None:
        self.hearts.beat(_WATCH, within=self.settings.resync.interval + _MARGIN)

    async def _another(self, plan: PlanSettings) -> PlanSettings:
        """Wait until the settings name another source."""
        if self.settings_file is not None:
            # Yields at once, too: the file may have changed since it was read.
            async for _ in changes(self.settings_file.path):
                found = await self._read(self.settings_file)
                if found is not None and found.plan != plan:
                    return found.plan
        await asyncio.Event().wait()
        raise AssertionError

    async def _read(self, file: SettingsFile) -> Settings | None:
        """The settings as they are now; what cannot be used leaves those in force."""
        try:
            found = await asyncio.to_thread(file.load)
            if replace(found, plan=self.settings.plan) != self.settings:
                message = "changed settings, except those of the plan, need a restart of the agent"
                self.events.add(EventType.SETTINGS_KEPT, message)
            source = source_of(found.plan, in_cluster=self.cluster is not None)
            if self.cluster:
                self.cluster.check(source)
        except NodeagentError as error:
            message = f"the settings stay as they were: {error.message}"
            self.events.add(EventType.SETTINGS_KEPT, message, remedy=error.remedy)
            return None
        return found
