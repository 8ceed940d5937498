"""The plan's source, and the settings file, whose changes are for the agent's next start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.app.shared import Shared
from nodeagent.catalogue import agent_words
from nodeagent.errors import NodeagentError
from nodeagent.files.watch import changes
from nodeagent.reconcile.active_plan import ActivePlan
from nodeagent.reconcile.event_log import EventType
from nodeagent.reconcile.plan_file import PlanFile
from nodeagent.settings import Settings
from nodeagent.structs import Struct

if TYPE_CHECKING:
    from nodeagent.app.cluster_service import ClusterService

_WATCH = "plan file's watch"
_MARGIN = 30.0  # seconds that a look at the plan file may be late


class SettingsFile(Struct, frozen=True):
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
        self._settings_file = settings_file
        plan, interval = shared.settings.plan, shared.settings.resync.interval
        alive = partial(shared.heartbeats.beat, _WATCH, within=interval + _MARGIN)
        follow = partial(PlanFile, plan.file, recheck_every=interval, alive=alive)
        on_node = cluster.follow_source(follow, active_plan.offer) if cluster else None
        self._source = on_node or follow(active_plan.offer, configuration=plan.name)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self._source.run(), name="follow the plan's source")
            if self._settings_file:
                watch = self._watch(self._settings_file)
                parts.create_task(watch, name="watch the settings file")

    async def _watch(self, file: SettingsFile) -> None:
        """Report changed settings, which are not in force."""
        async for _ in changes(file.path):  # at once, too: it may have changed since it was read
            message = "changed settings need a restart of the agent"
            remedy = f"`{agent_words()['reload']}`"
            try:
                if await asyncio.to_thread(file.load) == self._shared.settings:
                    continue
            except NodeagentError as error:
                message, remedy = f"the settings stay as they were: {error.message}", error.remedy
            self._shared.events.add(EventType.SETTINGS_KEPT, message, remedy=remedy)
