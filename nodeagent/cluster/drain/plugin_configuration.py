"""What one of the device plugin's configuration files says, as far as its offer hangs on it.

The files are those that its config-manager chooses from by the node's label: a folder, such as a
mounted ConfigMap, with one file for each name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeagent.cluster.drain.allocatable import NOT_SHARED, PluginSharing, Replicated, SharedBy
from nodeagent.cluster.drain.strategy import Strategy
from nodeagent.documents.bounded_yaml import LARGEST_TEXT, Value, read_tree
from nodeagent.documents.findings import shown
from nodeagent.errors import DocumentError, NodeagentError
from nodeagent.files.regular import read_regular_file

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_MOST_REPLICAS: Final = 10_000  # far above what any GPU serves
_LONGEST_RESOURCE: Final = 320  # characters; a prefix of 253, a name of 63


class NoSuchConfiguration(NodeagentError):
    """The folder has no file of this name."""


@dataclass(frozen=True, slots=True)
class PluginConfiguration:
    """`strategy` None: the file leaves it to the plugin's own flags.

    `sharing` None: how many devices there will be cannot be said from the file. NVIDIA's plugin
    ignores a resource's `rename` and `devices`, and others that read the same file do not.
    """

    strategy: Strategy | None = None
    sharing: PluginSharing | None = NOT_SHARED


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
            f"{path} is no configuration of the device plugin: {error.message}",
            remedy=error.remedy,
        ) from error
    except _Wrong as wrong:
        raise NodeagentError(f"{path} is no configuration of the device plugin: {wrong}") from wrong


def read_configuration(text: bytes | str) -> PluginConfiguration:
    """What the text says; raises DocumentError where it is no YAML, ValueError for wrong values."""
    document = _map(read_tree(text).value, "the document")
    strategy = _map(document.get("flags"), "flags").get("migStrategy")
    if strategy is not None and not (isinstance(strategy, str) and strategy in set(Strategy)):
        raise _wrong("flags.migStrategy", strategy, "none, single or mixed")
    sharing = _map(document.get("sharing"), "sharing")
    # Where both are given, the plugin shares by MPS.
    for by, key in ((SharedBy.MPS, "mps"), (SharedBy.TIME_SLICING, "timeSlicing")):
        given = _map(sharing.get(key), f"sharing.{key}")
        if given.get("resources"):
            found = _sharing(by, given, f"sharing.{key}")
            return PluginConfiguration(Strategy(strategy) if strategy else None, found)
    return PluginConfiguration(Strategy(strategy) if strategy else None)


class _Wrong(ValueError):
    pass


def _sharing(by: SharedBy, given: Mapping[str, Value], path: str) -> PluginSharing | None:
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
        resources.append(Replicated(name, replicas))
    return PluginSharing(by, tuple(resources), renames) if exact else None


def _map(value: Value, place: str) -> Mapping[str, Value]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(place, value, "a map")
    return value


def _wrong(place: str, found: Value, accepted: str) -> _Wrong:
    return _Wrong(f"{place} is {shown(found)}, and should be {accepted}")


def _there(folder: Path) -> str:
    try:
        names = sorted(e.name for e in os.scandir(folder) if not e.name.startswith("."))
    except OSError:
        return "the folder itself cannot be read"
    return f"there are: {', '.join(names[:20])}" if names else "the folder is empty"
