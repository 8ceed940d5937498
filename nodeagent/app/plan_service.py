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

from nodeagent.app.shared import Shared, source_of
from nodeagent.errors import NodeagentError
from nodeagent.files.watch import changes
from nodeagent.reconcile.active_plan import ActivePlan
from nodeagent.reconcile.event_log import EventType
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
    """The settings file; `load` reads all sources of settings anew and may block."""

    path: Path
    load: Callable[[], Settings]


class PlanService:
    """Follows the plan's source while `run` runs, and has `active_plan` take what it reports."""

    def __init__(
        self,
        shared: Shared,
        settings_file: SettingsFile | None,
        active_plan: ActivePlan,
        cluster: ClusterService | None,
    ) -> None:
        self._shared = shared
        self._settings = shared.settings
        self._settings_file = settings_file
        self._offer = active_plan.offer
        self._cluster = cluster

    async def run(self) -> None:
        plan = self._settings.plan
        while True:
            async with asyncio.TaskGroup() as group:
                following = group.create_task(self._follow(plan), name="follow the plan's source")
                plan = await self._another(plan)
                following.cancel()
            states = self._shared.states
            source = self._source_of(plan)
            message = f"the plan comes from another source now: {source}"
            self._shared.events.add(EventType.PLAN_SOURCE, message)
            states.newest = replace(states.newest, source=source)
            self._shared.control.wake("another plan source")

    def _source_of(self, plan: PlanSettings) -> str:
        return source_of(plan, in_cluster=self._cluster is not None)

    async def _follow(self, plan: PlanSettings) -> None:
        interval, heartbeats = self._settings.resync.interval, self._shared.heartbeats
        alive = partial(heartbeats.beat, _WATCH, within=interval + _MARGIN)
        follow = partial(PlanFile, plan.file, recheck_every=interval, alive=alive)
        try:
            source: PlanFile | NodeSource | None = None
            if self._cluster:
                source = self._cluster.use(self._source_of(plan), follow, self._offer)
            await (source or follow(self._offer, configuration=plan.name)).run()
        finally:
            heartbeats.forget(_WATCH)

    async def _another(self, plan: PlanSettings) -> PlanSettings:
        if self._settings_file is not None:
            # Yields at once, too: the file may have changed since it was read.
            async for _ in changes(self._settings_file.path):
                found = await self._read(self._settings_file)
                if found is not None and found.plan != plan:
                    return found.plan
        await asyncio.Event().wait()
        raise AssertionError

    async def _read(self, file: SettingsFile) -> Settings | None:
        """The settings as they are now; what cannot be used leaves those in force."""
        events = self._shared.events
        try:
            found = await asyncio.to_thread(file.load)
            if replace(found, plan=self._settings.plan) != self._settings:
                message = "changed settings, except those of the plan, need a restart of the agent"
                events.add(EventType.SETTINGS_KEPT, message)
            source = self._source_of(found.plan)
            if self._cluster:
                self._cluster.check(source)
        except NodeagentError as error:
            message = f"the settings stay as they were: {error.message}"
            events.add(EventType.SETTINGS_KEPT, message, remedy=error.remedy)
            return None
        return found
