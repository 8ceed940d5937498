"""The device plugin's configuration that nos writes for a node which it divides by MPS.

For such nodes nos writes no spec annotations. It puts this text into a ConfigMap and sets the
node's label to the name of the key it is under.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nodeagent.cluster.plan_sources.nos.requests import Asked, Reading
from nodeagent.cluster.plan_sources.nos.spelling import share_size
from nodeagent.documents.bounded_yaml import Value, read_tree
from nodeagent.documents.findings import path_text, shown
from nodeagent.documents.mps import MOST_CLIENTS
from nodeagent.errors import DocumentError
from nodeagent.plan.problems import Code, Problem

CONFIGURATION_LABEL = "nvidia.com/device-plugin.config"

_RENAMED = "gpu-"
_LONGEST_INDEX = 4


def configuration_key(labels: Mapping[str, str]) -> str | None:
    """The key of the ConfigMap under which this node's configuration is; None without one."""
    return labels.get(CONFIGURATION_LABEL) or None


def read_configuration(text: str) -> Reading:
    """The shares that a configuration asks for; of the rest of it nothing is said."""
    try:
        document = read_tree(text).value
    except DocumentError as error:
        return Reading(wrong=tuple(error.problems))
    sharing = document.get("sharing") if isinstance(document, dict) else None
    mps = sharing.get("mps") if isinstance(sharing, dict) else None
    resources = mps.get("resources") if isinstance(mps, dict) else None
    if resources is None:
        return Reading()
    if not isinstance(resources, list):
        return Reading(wrong=(_wrong(("resources",), resources, "a list"),))
    found = [f for number, one in enumerate(resources) for f in _resource(number, one)]
    return Reading(
        asked=tuple(f for f in found if isinstance(f, Asked) and f.count),
        wrong=tuple(f for f in found if isinstance(f, Problem)),
    )


def _resource(number: int, resource: Value) -> Iterator[Asked | Problem]:
    place = ("resources", number)
    if not isinstance(resource, dict):
        yield _wrong(place, resource, "a map")
        return
    renamed, replicas = resource.get("rename"), resource.get("replicas")
    profile = renamed.removeprefix(_RENAMED) if isinstance(renamed, str) else ""
    size = share_size(profile)
    if size is None or renamed == profile:
        yield _wrong((*place, "rename"), renamed, "gpu-<N>gb, such as gpu-10gb")
    elif resource.get("memoryGB", size) != size:
        yield _wrong((*place, "memoryGB"), resource["memoryGB"], f"{size}, as rename says")
    elif type(replicas) is not int or not 0 <= replicas <= MOST_CLIENTS:
        yield _wrong((*place, "replicas"), replicas, f"a number from 0 to {MOST_CLIENTS}")
    else:
        yield from _on_devices(place, resource.get("devices"), profile, replicas)


def _on_devices(
    place: tuple[str | int, ...], devices: Value, profile: str, replicas: int
) -> Iterator[Asked | Problem]:
    place = (*place, "devices")
    if not isinstance(devices, list):
        yield _wrong(place, devices, 'a list of GPU indices such as ["0"]')
        return
    for number, device in enumerate(devices):
        text = str(device) if type(device) in (int, str) else ""
        if text.isascii() and text.isdecimal() and len(text) <= _LONGEST_INDEX:
            yield Asked(int(text), profile, replicas, _path(place))
        else:
            yield _wrong((*place, number), device, "the index of a GPU")


def _wrong(place: tuple[str | int, ...], found: Value, accepted: str) -> Problem:
    return Problem(
        Code.INVALID_VALUE,
        f"the device plugin's configuration has {shown(found)} at {_path(place)}",
        f"write {accepted}",
        path=_path(place),
    )


def _path(place: tuple[str | int, ...]) -> str:
    return path_text(("sharing", "mps", *place))
