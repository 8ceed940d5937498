"""Whether the device plugin can serve a layout, and what the node will then offer to pods.

From its configuration file where that folder is known (the files that its config-manager chooses
from by the node's label), else from the labels of GPU feature discovery. A change sends feature
discovery away, and its labels with it: their last values are remembered.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from nodeagent.cluster.drain.changes import PLUGIN_CONFIG
from nodeagent.cluster.drain.device_plugin import (
    FEATURES_LABEL,
    SHARING_LABEL,
    PluginConfiguration,
    Strategy,
    gpus_after,
    strategy_of,
)
from nodeagent.documents.bounded_yaml import LARGEST_TEXT, Value, read_tree
from nodeagent.documents.findings import refuse
from nodeagent.errors import DocumentError, NodeagentError
from nodeagent.files.state import read_regular_file
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.active_plan import Judgement
from nodeagent.text import shown

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_MOST_REPLICAS: Final = 10_000  # far above what any GPU serves
_LONGEST_RESOURCE: Final = 320  # characters; a prefix of 253, a name of 63


class NoSuchConfiguration(NodeagentError):
    """The folder has no file of this name."""


def read_configuration_file(folder: Path, name: str) -> PluginConfiguration:
    """Read the file; raises NodeagentError in words for who wrote it. May block."""
    if not _NAME.fullmatch(name):
        raise NoSuchConfiguration(f"{name!r} is no name of a configuration of the device plugin")
    path = folder / name
    try:
        text = read_regular_file(path, LARGEST_TEXT)
    except FileNotFoundError as error:
        raise NoSuchConfiguration(
            f"the device plugin's configurations in {folder} have none of the name {name}",
            remedy=_there(folder),
        ) from error
    except OSError as error:
        raise NodeagentError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return read_configuration(text)
    except DocumentError as error:
        raise NodeagentError(
            f"{path} is not a configuration of the device plugin: {error.message}",
            remedy=error.remedy,
        ) from error


def read_configuration(text: bytes | str) -> PluginConfiguration:
    """Parse the text; raises DocumentError where it is no YAML, and for wrong values."""
    document = _map(read_tree(text).value, "the document")
    strategy = _map(document.get("flags"), "flags").get("migStrategy")
    if strategy is not None and not (isinstance(strategy, str) and strategy in set(Strategy)):
        raise _wrong("flags.migStrategy", strategy, "none, single or mixed")
    sharing = _map(document.get("sharing"), "sharing")
    known = Strategy(strategy) if strategy else None
    for key in ("mps", "timeSlicing"):  # where both are given, the plugin shares by MPS
        given = _map(sharing.get(key), f"sharing.{key}")
        if given.get("resources"):
            replicas, renames = _sharing(given, f"sharing.{key}")
            return PluginConfiguration(known, replicas, renames, by_mps=key == "mps")
    return PluginConfiguration(known)


def _sharing(
    given: Mapping[str, Value], path: str
) -> tuple[tuple[tuple[str, int], ...] | None, bool]:
    listed = given["resources"]
    if not isinstance(listed, list):
        raise _wrong(f"{path}.resources", listed, "a list")
    renames = given.get("renameByDefault", False)
    if not isinstance(renames, bool):
        raise _wrong(f"{path}.renameByDefault", renames, "true or false")
    resources, exact = [], True
    for number, entry in enumerate(listed):
        place = f"{path}.resources[{number}]"
        one = _map(entry, place)
        name, replicas = one.get("name"), one.get("replicas")
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_RESOURCE:
            raise _wrong(f"{place}.name", name, "a resource such as nvidia.com/gpu")
        if type(replicas) is not int or not 1 <= replicas <= _MOST_REPLICAS:
            raise _wrong(f"{place}.replicas", replicas, "a whole number from 2 on")
        exact = exact and not one.get("rename") and one.get("devices", "all") == "all"
        resources.append((name, replicas))
    return tuple(resources) if exact else None, renames


def _map(value: Value, place: str) -> Mapping[str, Value]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(place, value, "a map")
    return value


def _wrong(place: str, found: Value, accepted: str) -> DocumentError:
    return refuse(f"{place} is {shown(found)}, and should be {accepted}")


def _there(folder: Path) -> str:
    try:
        names = sorted(e.name for e in os.scandir(folder) if not e.name.startswith("."))
    except OSError:
        return "the folder itself cannot be read"
    return f"there are: {', '.join(names[:20])}" if names else "the folder is empty"


# --- the outlook ----------------------------------------------------------------------------------

log = structlog.get_logger(__name__)

_UNKNOWN: Final = PluginConfiguration(None, None)


def configuration_of(judgement: Judgement) -> str | None:
    """The plugin's configuration that the plan asks for; None where it does not."""
    return judgement.document.device_plugin_config if judgement.document else None


class PluginOutlook:
    """`folder` holds the plugin's configuration files; None: it is not known where they are."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._labelled = _UNKNOWN  # by feature discovery, for the configuration `_labelled_for`
        self._labelled_for = ""
        self._labelled_at: str | None = None  # its own time stamp
        self._complaint = ""

    def observe(self, labels: Mapping[str, str]) -> None:
        """The Node has these labels now."""
        strategy, stamp = strategy_of(labels), labels.get(FEATURES_LABEL, "")
        name = labels.get(PLUGIN_CONFIG, "")
        if strategy is None or (name != self._labelled_for and stamp == self._labelled_at):
            return  # sent away, or it has not looked since the configuration is another
        # The label says whether devices are shared, and not how many of what.
        is_shared = labels.get(SHARING_LABEL, "none") != "none"
        self._labelled = PluginConfiguration(strategy, None if is_shared else ())
        self._labelled_for, self._labelled_at = name, stamp

    async def objections(
        self,
        judgement: Judgement,
        todo: NodePlan,
        observed: ObservedNode,
        labels: Mapping[str, str],
    ) -> tuple[Problem, ...]:
        """Why the plugin could not serve the node once `todo` is done, a part of the plan."""
        try:
            plugin = await self._plugin(labels, configuration_of(judgement))
        except NodeagentError as error:
            is_missing = isinstance(error, NoSuchConfiguration)
            code = Code.UNKNOWN_CONFIGURATION if is_missing else Code.INVALID_VALUE
            return (Problem(code, error.message, error.remedy, path="devicePluginConfig"),)
        problems = plugin.refuses(gpus_after(todo, observed))
        if problems and plugin.refuses(observed.gpus) and _leaves_work(judgement, todo):
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
        return plugin.offer(observed.gpus)

    async def _plugin(self, labels: Mapping[str, str], wanted: str | None) -> PluginConfiguration:
        """Raises NodeagentError for a file that the plan asks for and that cannot be used."""
        self.observe(labels)
        name = labels.get(PLUGIN_CONFIG, "") if wanted is None else wanted
        # The labels are of the configuration that was in force when they were written.
        by_labels = self._labelled if name == self._labelled_for else _UNKNOWN
        if self._folder is None or not name:
            return by_labels
        try:
            found = await asyncio.to_thread(read_configuration_file, self._folder, name)
        except NodeagentError as error:
            if wanted is not None:
                raise
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning("the device plugin's configuration is not known", error=str(error))
            return by_labels
        if found.strategy is None:
            return replace(found, strategy=await self._strategy_of_flags(name))
        return found

    async def _strategy_of_flags(self, name: str) -> Strategy | None:
        """By the plugin's own flags, as far as the labels do not come from a file."""
        if self._labelled_for not in ("", name) and self._folder is not None:
            try:
                other = await asyncio.to_thread(
                    read_configuration_file, self._folder, self._labelled_for
                )
            except NodeagentError:
                return None
            if other.strategy is not None:
                return None
        return self._labelled.strategy


def _leaves_work(judgement: Judgement, todo: NodePlan) -> bool:
    """Whether GPUs are left that are not as planned once `todo` is done."""
    now = {gpu.before.key for gpu in todo.gpus}
    planned = judgement.plan.gpus if judgement.plan else ()
    return any(gpu.verdict is not Verdict.IN_SYNC and gpu.before.key not in now for gpu in planned)
