"""nos' protocol as a plan source: its partitioner requests, and gets the state reported.

For nodes that it divides by MPS nos writes no spec annotations: it adds a key with the device
plugin's configuration to a ConfigMap, then sets the node's label to that key. It never changes the
text under a key, so each key is read once and nothing has to be watched.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

import structlog
from msgspec.json import Decoder

from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_view import NodeView, Wanted
from nodeagent.cluster.plan_sources.node_source import NodeSource, Offer
from nodeagent.cluster.plan_sources.nos.grammar import (
    CONFIGURATION_LABEL,
    SPEC_PLAN,
    PartitioningKind,
    partitioning_of,
)
from nodeagent.cluster.plan_sources.nos.status import status_annotations
from nodeagent.cluster.plan_sources.nos.to_plan import DeferredNosPlan, deferred_plan
from nodeagent.errors import UsageError
from nodeagent.pacing import Backoff
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.plan_update import NoPlan, PlanUpdate, UnreadablePlan
from nodeagent.structs import Struct
from nodeagent.text import quote
from nodeagent.views.node_state import NodeState

log = structlog.get_logger(__name__)

_AT_LABEL = f'metadata.labels["{CONFIGURATION_LABEL}"]'
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
        raise UsageError.of("nosConfigMap", found=quote(config_map))
    return parts[0], parts[1]


class NosSource(NodeSource):
    """Asks for what nos' spec annotations, or its configuration of the device plugin, say.

    `config_map` is NAMESPACE/NAME of the latter, None where it is not to be read; UsageError if
    it is written otherwise.
    """

    def __init__(
        self,
        offer: Offer,
        access: ClusterAccess,
        config_map: str | None,
        *,
        rounds: Callable[[], int],
        intervals: ReadIntervals = ReadIntervals(),
    ) -> None:
        super().__init__(offer, rounds=rounds)
        self._configuration = (
            NosConfiguration(access, config_map, self.update, intervals=intervals)
            if config_map
            else None
        )

    async def run(self) -> None:
        """Read the ConfigMap whenever the label names another key, until cancelled."""
        if self._configuration:
            await self._configuration.run()
        await asyncio.Event().wait()

    def observe(self, view: NodeView | None) -> None:
        if self._configuration:
            self._configuration.want(_key(view) if view else None)
        super().observe(view)

    def update(self) -> None:
        """Offer what is asked for now, and log what nos ignores of it in silence."""
        before = self.last_offer
        super().update()
        if self.last_offer != before and isinstance(self.last_offer, DeferredNosPlan):
            for one in self.last_offer.ignored:
                log.warning(one.message, remedy=one.remedy)

    def requested(self, view: NodeView) -> PlanUpdate | DeferredNosPlan | None:
        """The plan that the Node requests; None while the configuration is being read."""
        key = _key(view)
        if key is None:
            return deferred_plan(view.annotations, view.labels)
        if self._configuration is None:
            if view.annotations.get(SPEC_PLAN):
                return deferred_plan(view.annotations, view.labels)
            return NoPlan(
                f"the label {CONFIGURATION_LABEL} names nos' configuration {quote(key)}, and "
                "kubernetes.nos_config_map does not say which ConfigMap it is in"
            )
        found = self._configuration.found
        if isinstance(found, str):
            return deferred_plan(view.annotations, view.labels, found)
        return found

    def answer(self, view: NodeView, state: NodeState, offered: PlanUpdate | None) -> Wanted:
        """What is free and in use, and the plan that this is the answer to."""
        judged = self.is_judged_in(state)
        annotations = status_annotations(
            state, offered, annotations=view.annotations, labels=view.labels, judged=judged
        )
        return Wanted(annotations=annotations)


def _key(view: NodeView) -> str | None:
    """The key of the ConfigMap that matters for this node; None when none does."""
    if partitioning_of(view.labels) is not PartitioningKind.MPS:
        return None
    return view.labels.get(CONFIGURATION_LABEL) or None


class _ConfigMap(Struct):
    data: dict[str, str] | None = None


_CONFIG_MAP: Final = Decoder(_ConfigMap)


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
        found = await self._access.find(request, _CONFIG_MAP.decode)
        return None if found is None else found.data or {}

    def _not_read(self, key: str, fault: faults.ClusterFault) -> Trouble:
        """What a person has to mend is a refusal; the rest passes."""
        what = (
            f"nos' configuration {quote(key)} is in the ConfigMap {self._namespace}/{self._name}, "
            f"which cannot be read: {fault.message}"
        )
        if isinstance(fault, faults.NotAllowed | faults.RequestRefused):
            remedy = fault.remedy or "let the agent's service account get this ConfigMap"
            return UnreadablePlan(
                Problem.of(
                    Code.UNKNOWN_CONFIGURATION,
                    "mapUnread",
                    path=_AT_LABEL,
                    what=what,
                    remedy=remedy,
                )
            )
        return NoPlan(what)

    def _not_there(self, key: str, *, is_map: bool) -> Trouble:
        where = f"the ConfigMap {self._namespace}/{self._name}"
        what = f"{where} has no {quote(key)}" if is_map else f"there is no {where}"
        return UnreadablePlan(
            Problem.of(
                Code.UNKNOWN_CONFIGURATION,
                "notInMap",
                path=_AT_LABEL,
                label=CONFIGURATION_LABEL,
                name=quote(key),
                why=what,
            )
        )
