"""The device plugin's configuration that nos writes for a node which it divides by MPS.

For such nodes nos writes no spec annotations: it adds a key with this text to a ConfigMap, then
sets the node's label to that key. It never changes the text under a key, so each key is read once
and nothing has to be watched.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import structlog

from nodeagent.backoff import Backoff
from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.plan_sources.nos.grammar import DeviceRequest, Requests, share_size
from nodeagent.documents.bounded_yaml import Value, read_tree
from nodeagent.documents.findings import path_text
from nodeagent.documents.mps import MOST_CLIENTS
from nodeagent.errors import DocumentError, UsageError
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.plan_update import NoPlan, UnreadablePlan
from nodeagent.text import shown

CONFIGURATION_LABEL = "nvidia.com/device-plugin.config"

_RENAMED = "gpu-"
_LONGEST_INDEX = 4


def read_configuration(text: str) -> Requests:
    """The shares that a configuration asks for; the rest of it is ignored."""
    try:
        document = read_tree(text).value
    except DocumentError as error:
        return Requests(wrong=tuple(error.problems))
    sharing = document.get("sharing") if isinstance(document, dict) else None
    mps = sharing.get("mps") if isinstance(sharing, dict) else None
    resources = mps.get("resources") if isinstance(mps, dict) else None
    if resources is None:
        return Requests()
    if not isinstance(resources, list):
        return Requests(wrong=(_wrong(("resources",), resources, "a list"),))
    found = [f for number, one in enumerate(resources) for f in _resource(number, one)]
    return Requests(
        devices=tuple(f for f in found if isinstance(f, DeviceRequest) and f.count),
        wrong=tuple(f for f in found if isinstance(f, Problem)),
    )


def _resource(number: int, resource: Value) -> Iterator[DeviceRequest | Problem]:
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
        yield _wrong((*place, "memoryGB"), resource["memoryGB"], f"{size}, as in rename")
    elif type(replicas) is not int or not 0 <= replicas <= MOST_CLIENTS:
        yield _wrong((*place, "replicas"), replicas, f"a number from 0 to {MOST_CLIENTS}")
    else:
        yield from _on_devices(place, resource.get("devices"), profile, replicas)


def _on_devices(
    place: tuple[str | int, ...], devices: Value, profile: str, replicas: int
) -> Iterator[DeviceRequest | Problem]:
    place = (*place, "devices")
    if not isinstance(devices, list):
        yield _wrong(place, devices, 'a list of GPU indices such as ["0"]')
        return
    for number, device in enumerate(devices):
        text = str(device) if type(device) in (int, str) else ""
        if text.isascii() and text.isdecimal() and len(text) <= _LONGEST_INDEX:
            yield DeviceRequest(int(text), profile, replicas, _path(place))
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


log = structlog.get_logger(__name__)

Trouble = NoPlan | UnreadablePlan
_PARTS = 2


@dataclass(frozen=True, slots=True)
class ReadIntervals:
    """Times in seconds. Nothing reports when a missing key is there, so it is looked for
    again, less and less often.
    """

    interval: float = 1.0  # between two requests, however often the label changes
    retry: tuple[float, float] = (1.0, 300.0)  # at first, at most


def place_of(config_map: str) -> tuple[str, str]:
    """Namespace and name of a ConfigMap as the setting has them; raises UsageError."""
    parts = config_map.split("/")
    if len(parts) != _PARTS or not all(parts):
        raise UsageError(
            f"kubernetes.nos_config_map is {shown(config_map)}, not NAMESPACE/NAME",
            remedy="nos' own chart calls it nebuly-nvidia/nos-device-plugin-configs",
        )
    return parts[0], parts[1]


class NosConfiguration:
    """One key of one ConfigMap; `changed` is called when `found` is another.

    `place` is NAMESPACE/NAME; anything else raises UsageError. `found` is the text under the key
    that is wanted, or why it is not known; None while it is being read.
    """

    def __init__(
        self,
        access: ClusterAccess,
        place: str,
        changed: Callable[[], None],
        *,
        intervals: ReadIntervals = ReadIntervals(),
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._access = access
        self._namespace, self._name = place_of(place)
        self._changed = changed
        self._interval = intervals.interval
        self._backoff = Backoff(*intervals.retry, spread=1.0, jitter=jitter)
        self._another_key = asyncio.Event()
        self._key: str | None = None
        self.found: str | Trouble | None = None

    def want(self, key: str | None) -> None:
        """Read this key from now on; None: no key at all."""
        if key != self._key:
            self._key, self.found = key, None
            self._backoff.reset()
            self._another_key.set()

    async def run(self) -> NoReturn:
        """Read whatever key is wanted, until cancelled."""
        while True:
            self._another_key.clear()
            pause = None
            if self._key is not None:
                pause = await self._read(self._key)
                await asyncio.sleep(self._interval)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._another_key.wait()

    async def _read(self, key: str) -> float | None:
        """Read the key; returns the seconds until the next attempt, None once it is known."""
        patience = 0.0
        found: str | Trouble | None
        try:
            texts = await self._texts()
        except faults.ClusterFault as fault:
            found, patience = self._not_read(key, fault), fault.retry_after or 0.0
        else:
            found = (texts or {}).get(key)
            if found is None:
                found = self._not_there(key, is_map=texts is not None)
        if key != self._key:
            return None
        if found != self.found:
            if not isinstance(found, str):
                log.warning("nos' configuration of the device plugin is not known", key=key)
            self.found = found
            self._changed()
        return None if isinstance(found, str) else self._backoff.next(patience)

    async def _texts(self) -> Mapping[str, str] | None:
        """All texts of the ConfigMap by key; None when there is none of this name."""
        request = requests.get_config_map(self._namespace, self._name)
        found = await self._access.find(request)
        if found is None:
            return None
        data = found.get("data") or {}
        if not isinstance(data, dict) or not all(isinstance(text, str) for text in data.values()):
            raise faults.strange_answer(request.purpose, "it is not a ConfigMap")
        return data

    def _not_read(self, key: str, fault: faults.ClusterFault) -> Trouble:
        """What a person has to mend is a refusal; the rest passes."""
        what = (
            f"nos' configuration {shown(key)} is in the ConfigMap {self._namespace}/{self._name}, "
            f"which cannot be read: {fault.message}"
        )
        if isinstance(fault, faults.NotAllowed | faults.RequestRefused):
            remedy = fault.remedy or "let the agent's service account get this ConfigMap"
            return UnreadablePlan(Problem(Code.UNKNOWN_CONFIGURATION, what, remedy, path=_AT_LABEL))
        return NoPlan(what)

    def _not_there(self, key: str, *, is_map: bool) -> Trouble:
        where = f"the ConfigMap {self._namespace}/{self._name}"
        what = f"{where} has no {shown(key)}" if is_map else f"there is no {where}"
        return UnreadablePlan(
            Problem(
                Code.UNKNOWN_CONFIGURATION,
                f"the label {CONFIGURATION_LABEL} names {shown(key)}, but {what}",
                "the agent retries; kubernetes.nos_config_map names the ConfigMap",
                path=_AT_LABEL,
            )
        )


_AT_LABEL = f'metadata.labels["{CONFIGURATION_LABEL}"]'
