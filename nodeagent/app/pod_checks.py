"""Whether pods go together with the devices of their claims. Each is read once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NoReturn

from nodeagent.claims.model import RecordPhase
from nodeagent.claims.reporting.pod_problems import pod_problems, serves_one_user
from nodeagent.claims.serving.node_claims import NodeClaims
from nodeagent.errors import NodeagentError
from nodeagent.plan.problems import Problem
from nodeagent.signals import Signal

_Key = tuple[str, str]  # the claim's uid, the pod's name
_INTERVAL = 60.0  # seconds, for what could not be read


class PodChecks:
    """For all ready claims of the node, while `run` runs."""

    def __init__(self, claims: NodeClaims) -> None:
        self._claims = claims
        self._found: dict[_Key, tuple[Problem, ...]] = {}
        self._woken = asyncio.Event()
        self.changed: Signal[None] = Signal(None)

    @property
    def problems(self) -> Mapping[str, tuple[Problem, ...]]:
        """By the claim's uid."""
        found: dict[str, tuple[Problem, ...]] = {}
        for (uid, _), problems in self._found.items():
            found[uid] = (*found.get(uid, ()), *problems)
        return found

    def wake(self) -> None:
        """Claims or their pods may be others."""
        self._woken.set()

    async def run(self) -> NoReturn:
        while True:
            await self._round()
            try:
                async with asyncio.timeout(_INTERVAL):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()

    async def _round(self) -> None:
        pods = {
            (record.uid, pod.name): record
            for record in self._claims.store.records
            if record.phase is RecordPhase.READY and serves_one_user(record)
            for pod in self._claims.pods.of((record.namespace, record.name))
        }
        before = self.problems
        self._found = {key: found for key, found in self._found.items() if key in pods}
        for key in pods.keys() - self._found.keys():
            record = pods[key]
            try:
                pod = await self._claims.fetch_pod(record.namespace, key[1])
            except NodeagentError:
                continue  # it is asked again
            self._found[key] = tuple(pod_problems(record, pod)) if pod else ()
        if self.problems != before:
            self.changed.publish(None)
