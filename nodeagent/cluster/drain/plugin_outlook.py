"""Whether the device plugin can serve a layout, and what the node will then offer to pods.

From its configuration file where the folder with them is known, else from what GPU feature
discovery writes on the node. Feature discovery is itself sent away around a change, and its labels
go with it: what they said last is remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from nodeagent.cluster.drain.allocatable import (
    PluginSharing,
    expected,
    not_shareable,
    sharing_of,
)
from nodeagent.cluster.drain.change import PLUGIN_CONFIG
from nodeagent.cluster.drain.plugin_configuration import (
    NoSuchConfiguration,
    read_configuration_file,
)
from nodeagent.cluster.drain.strategy import (
    FEATURES_LABEL,
    Strategy,
    cannot_serve,
    gpus_after,
    strategy_of,
)
from nodeagent.errors import NodeagentError
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.plan.problems import Code, Problem

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Plugin:
    """What is known of it; None for what is not."""

    strategy: Strategy | None = None
    sharing: PluginSharing | None = None

    def refuses(self, gpus: tuple[Gpu, ...]) -> tuple[Problem, ...]:
        """Why it could not offer these GPUs."""
        if self.strategy is None:
            return ()
        problems = cannot_serve(self.strategy, gpus)
        if self.sharing is not None:
            problems += not_shareable(self.strategy, gpus, self.sharing)
        return problems


class PluginOutlook:
    """`folder` holds the plugin's configuration files; None: nobody has said where they are."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._told = _Plugin()  # by feature discovery, for the configuration `_told_for`
        self._told_for = ""
        self._told_at: str | None = None  # its own time stamp
        self._complaint = ""

    def saw(self, labels: Mapping[str, str]) -> None:
        """The Node has these labels now."""
        strategy, stamp = strategy_of(labels), labels.get(FEATURES_LABEL, "")
        name = labels.get(PLUGIN_CONFIG, "")
        if strategy is None or (name != self._told_for and stamp == self._told_at):
            return  # sent away, or it has not looked since the configuration is another
        self._told = _Plugin(strategy, sharing_of(labels))
        self._told_for, self._told_at = name, stamp

    async def objections(
        self,
        plan: NodePlan,
        todo: NodePlan,
        observed: ObservedNode,
        labels: Mapping[str, str],
        *,
        wanted: str | None,
    ) -> tuple[Problem, ...]:
        """Why the plugin could not serve the node once `todo` is done.

        `wanted` is the configuration that the plan asks for, None where it does not.
        """
        try:
            plugin = await self._plugin(labels, wanted)
        except NoSuchConfiguration as error:
            return (_cannot_configure(Code.UNKNOWN_CONFIGURATION, error),)
        except NodeagentError as error:
            return (_cannot_configure(Code.INVALID_VALUE, error),)
        problems = plugin.refuses(gpus_after(todo, observed))
        if problems and plugin.refuses(observed.gpus) and _is_a_part(todo, plan):
            return ()  # the node cannot be served now either, and this is on the way
        return problems

    async def expected(
        self, observed: ObservedNode, labels: Mapping[str, str], *, wanted: str | None
    ) -> dict[str, int] | None:
        """What the node should offer with its GPUs like this; None if that cannot be known."""
        try:
            plugin = await self._plugin(labels, wanted)
        except NodeagentError:
            return None
        if plugin.strategy is None or plugin.sharing is None:
            return None
        return expected(plugin.strategy, observed.gpus, plugin.sharing)

    async def _plugin(self, labels: Mapping[str, str], wanted: str | None) -> _Plugin:
        """Raises NodeagentError for a file that the plan asks for and that cannot be used."""
        self.saw(labels)
        name = labels.get(PLUGIN_CONFIG, "") if wanted is None else wanted
        # What feature discovery says is of the configuration that was there when it said so.
        told = self._told if name == self._told_for else _Plugin()
        if self._folder is None or not name:
            return told
        try:
            found = await asyncio.to_thread(read_configuration_file, self._folder, name)
        except NodeagentError as error:
            if wanted is not None:
                raise
            self._complain(error)
            return told
        return _Plugin(found.strategy or await self._strategy_of_flags(name), found.sharing)

    async def _strategy_of_flags(self, name: str) -> Strategy | None:
        """What the plugin's own flags say, as far as what was told does not come from a file."""
        if self._told_for not in ("", name) and self._folder is not None:
            try:
                told_by = await asyncio.to_thread(
                    read_configuration_file, self._folder, self._told_for
                )
            except NodeagentError:
                return None
            if told_by.strategy is not None:
                return None
        return self._told.strategy

    def _complain(self, error: NodeagentError) -> None:
        if str(error) != self._complaint:
            self._complaint = str(error)
            log.warning("the device plugin's configuration is not known", error=str(error))


def _cannot_configure(code: Code, error: NodeagentError) -> Problem:
    return Problem(code, error.message, error.remedy, path="devicePluginConfig")


def _is_a_part(todo: NodePlan, plan: NodePlan) -> bool:
    """Whether GPUs are left that are not as planned once `todo` is done."""
    now = {gpu.before.key for gpu in todo.gpus}
    return any(
        gpu.verdict is not Verdict.IN_SYNC and gpu.before.key not in now for gpu in plan.gpus
    )
