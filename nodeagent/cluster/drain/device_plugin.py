"""NVIDIA's device plugin: what the node should offer to pods once the GPUs are as planned.

That follows from the plugin's configuration file where the folder of these is known (its
config-manager chooses one by the node's label), else from the labels of GPU feature discovery.
Around a change of GPUs feature discovery and its labels go: their last values are remembered.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import structlog
from msgspec import Meta, Struct, ValidationError, convert

from nodeagent.cluster.drain.changes import PLUGIN_CONFIG
from nodeagent.documents.bounded_yaml import MAX_TEXT, read_tree
from nodeagent.documents.findings import refuse
from nodeagent.errors import DocumentError, NodeagentError
from nodeagent.files.state import read_regular_file
from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.active_plan import PlanEvaluation
from nodeagent.structs import replace

log = structlog.get_logger(__name__)

STRATEGY_LABEL: Final = "nvidia.com/mig.strategy"
SHARING_LABEL: Final = "nvidia.com/gpu.sharing-strategy"
FEATURES_LABEL: Final = "nvidia.com/gfd.timestamp"
GPU_RESOURCE: Final = "nvidia.com/gpu"
MIG_RESOURCE: Final = "nvidia.com/mig-"
SHARED: Final = ".shared"
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)


class Strategy(StrEnum):
    """How the plugin offers MIG devices: not at all, as GPUs, or each profile by its name."""

    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


def strategy_of(labels: Mapping[str, str]) -> Strategy | None:
    """The strategy by GPU feature discovery's labels, which leave out `none`; None: unknown."""
    strategy = labels.get(STRATEGY_LABEL, "")
    if strategy in set(Strategy):
        return Strategy(strategy)
    return Strategy.NONE if not strategy and FEATURES_LABEL in labels else None


def devices_by_resource(strategy: Strategy, gpus: Iterable[Gpu]) -> dict[str, int]:
    """What there is for pods, before the plugin makes several devices of one by sharing.

    MIG devices count by their names with the strategy `none`, too: the plugin then offers their
    GPUs as whole ones, which no pod can use, and that difference has to be reported.
    """
    counts: Counter[str] = Counter()
    for gpu in gpus:
        if gpu.access is Access.LOST:
            continue
        if not gpu.in_mig_mode:
            counts[GPU_RESOURCE] += 1
            continue
        for _, device in gpu.mig_devices():
            single = strategy is Strategy.SINGLE
            counts[GPU_RESOURCE if single else resource_of(device.profile)] += 1
    return dict(sorted(counts.items()))


def resource_of(profile: str) -> str:
    """What the strategy `mixed` calls a profile: `1g.10gb+me` is nvidia.com/mig-1g.10gb.me."""
    return MIG_RESOURCE + profile.replace("+", ".")


@dataclass(frozen=True, slots=True)
class PluginConfiguration:
    """The plugin's strategy, and how many devices it makes of each one, by resource.

    `strategy` None: not known, such as where a file leaves it to the plugin's own flags. `replicas`
    None: how many is not determined. NVIDIA's plugin ignores a resource's `rename` and `devices`,
    and others that read the same file do not. With `rename_by_default` each shared resource gets
    `.shared`.
    """

    strategy: Strategy | None = None
    replicas: tuple[tuple[str, int], ...] | None = ()
    rename_by_default: bool = False

    def expected(self, gpus: Iterable[Gpu]) -> dict[str, int] | None:
        """How many of which resource the node should have, by name; None if that is not known."""
        if self.strategy is None or self.replicas is None:
            return None
        counts = devices_by_resource(self.strategy, gpus)
        result = dict(counts)
        for resource, replicas in self.replicas:
            devices = counts.get(resource, 0)
            if devices:
                name = resource + (SHARED if self.rename_by_default else "")
                result[resource] -= devices
                result[name] = result.get(name, 0) + devices * replicas
        return {name: count for name, count in sorted(result.items()) if count}


_UNKNOWN: Final = PluginConfiguration(None, None)

# --- its configuration file -----------------------------------------------------------------------


class NoSuchConfiguration(NodeagentError):
    """The folder has no file of this name."""


class _Resource(Struct):
    name: Annotated[str, Meta(min_length=1, max_length=320)]  # a prefix of 253, a name of 63
    replicas: Annotated[int, Meta(ge=1, le=10_000)]  # far above what any GPU serves
    rename: str | None = None
    devices: object = "all"


class _Sharing(Struct, rename="camel"):
    resources: tuple[_Resource, ...] | None = ()
    rename_by_default: bool = False


class _SharingByKind(Struct, rename="camel"):
    mps: _Sharing | None = None
    time_slicing: _Sharing | None = None


class _Flags(Struct, rename="camel"):
    mig_strategy: Strategy | None = None


class _Document(Struct):
    flags: _Flags | None = None
    sharing: _SharingByKind | None = None


def read_configuration(text: bytes | str) -> PluginConfiguration:
    """Parse the text; raises DocumentError where it is no YAML, and for wrong values."""
    try:
        value = read_tree(text).value
        document = convert({} if value is None else value, _Document)
    except ValidationError as error:
        raise refuse(str(error)) from error
    strategy = document.flags.mig_strategy if document.flags else None
    sharing = document.sharing or _SharingByKind()
    for shared in (sharing.mps, sharing.time_slicing):  # with both, the plugin shares by MPS
        if shared and shared.resources:
            exact = all(not one.rename and one.devices == "all" for one in shared.resources)
            replicas = tuple((one.name, one.replicas) for one in shared.resources)
            return PluginConfiguration(
                strategy, replicas if exact else None, shared.rename_by_default
            )
    return PluginConfiguration(strategy)


def read_configuration_file(folder: Path, name: str) -> PluginConfiguration:
    """Read the file; raises NodeagentError in words for the file's author. May block."""
    if not _NAME.fullmatch(name):
        raise NoSuchConfiguration(f"{name!r} is no name of a configuration of the device plugin")
    path = folder / name
    try:
        return read_configuration(read_regular_file(path, MAX_TEXT))
    except FileNotFoundError as error:
        raise NoSuchConfiguration(
            f"the device plugin's configurations in {folder} have none of the name {name}",
            remedy=_names_in(folder),
        ) from error
    except OSError as error:
        raise NodeagentError(f"{path} cannot be read: {error.strerror or error}") from error
    except DocumentError as error:
        raise NodeagentError(
            f"{path} is not a configuration of the device plugin: {error.message}",
            remedy=error.remedy,
        ) from error


def _names_in(folder: Path) -> str:
    try:
        names = sorted(e.name for e in os.scandir(folder) if not e.name.startswith("."))
    except OSError:
        return "the folder itself cannot be read"
    return f"there are: {', '.join(names[:20])}" if names else "the folder is empty"


def configuration_of(evaluation: PlanEvaluation) -> str | None:
    """The plugin's configuration that the plan asks for; None where it does not."""
    return evaluation.document.device_plugin_config if evaluation.document else None


class DevicePlugin:
    """The plugin on this node; `folder` has its configuration files, None: folder not known."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        # What feature discovery's labels said last, for which configuration, and their time stamp.
        self._labelled = _UNKNOWN
        self._labelled_for = ""
        self._labelled_at: str | None = None

    def observe(self, labels: Mapping[str, str]) -> None:
        """Remember what feature discovery says by the Node's labels."""
        strategy, stamp = strategy_of(labels), labels.get(FEATURES_LABEL, "")
        name = labels.get(PLUGIN_CONFIG, "")
        if strategy is None or (name != self._labelled_for and stamp == self._labelled_at):
            return  # no labels, or those of the earlier configuration
        # The label says whether devices are shared, and not how many of what.
        is_shared = labels.get(SHARING_LABEL, "none") != "none"
        self._labelled = PluginConfiguration(strategy, None if is_shared else ())
        self._labelled_for, self._labelled_at = name, stamp

    async def objections(self, wanted: str | None) -> tuple[Problem, ...]:
        """Why the configuration that the plan asks for cannot be used; empty where it can."""
        if self._folder is None or not wanted:
            return ()
        try:
            await asyncio.to_thread(read_configuration_file, self._folder, wanted)
        except NodeagentError as error:
            is_missing = isinstance(error, NoSuchConfiguration)
            code = Code.UNKNOWN_CONFIGURATION if is_missing else Code.INVALID_VALUE
            return (Problem.from_error(code, error, path="devicePluginConfig"),)
        return ()

    async def expected(
        self, gpus: Iterable[Gpu], labels: Mapping[str, str], *, wanted: str | None
    ) -> dict[str, int] | None:
        """What the node should offer with these GPUs; None if that cannot be known."""
        self.observe(labels)
        name = labels.get(PLUGIN_CONFIG, "") if wanted is None else wanted
        # The labels are of the configuration that was in force when they were written.
        plugin = self._labelled if name == self._labelled_for else _UNKNOWN
        if self._folder is not None and name:
            try:
                plugin = await asyncio.to_thread(read_configuration_file, self._folder, name)
            except NodeagentError as error:
                log.warning("the device plugin's configuration is not known", error=str(error))
        if plugin.strategy is None and await self._is_labelled_by_flags(name):
            plugin = replace(plugin, strategy=self._labelled.strategy)
        return plugin.expected(gpus)

    async def _is_labelled_by_flags(self, name: str) -> bool:
        """Whether the labelled strategy is that of the plugin's own flags, and so holds for the
        configuration `name`, too.
        """
        labelled_for = self._labelled_for
        if labelled_for in ("", name):
            return True
        if self._folder is None:
            return False
        try:
            found = await asyncio.to_thread(read_configuration_file, self._folder, labelled_for)
        except NodeagentError:
            return False
        return found.strategy is None
