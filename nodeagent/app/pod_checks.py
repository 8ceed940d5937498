"""Whether pods go together with the devices of their claims. Each is read once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NoReturn

from nodeagent.claims.model import RecordPhase
from nodeagent.claims.reporting.pod_problems import has_mps, pod_problems
from nodeagent.claims.serving.node_claims import NodeClaims
from nodeagent.claims.serving.pod_object import PodObject
from nodeagent.errors import NodeagentError
from nodeagent.plan.problems import Problem
from nodeagent.signals import Signal

_Key = tuple[str, str]  # the claim's uid, the pod's name
_INTERVAL = 60.0  # seconds, for what could not be read


class PodChecks:
    """Checks the pods of all ready claims of the node, while `run` runs."""

    def __init__(self, claims: NodeClaims) -> None:
        self._claims = claims
        self._read: dict[_Key, PodObject | None] = {}
        self.problems: Mapping[str, tuple[Problem, ...]] = {}  # by the claim's uid
        self._woken = asyncio.Event()
        self.changed: Signal[None] = Signal(None)

    def wake(self) -> None:
        """Check at once: claims or their pods may have changed."""
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
        ready = [one for one in self._claims.store.records if one.phase is RecordPhase.READY]
        pods = {
            (record.uid, pod.name): record
            for record in filter(has_mps, ready)
            for pod in self._claims.pods.of((record.namespace, record.name))
        }
        self._read = {key: pod for key, pod in self._read.items() if key in pods}
        for key in pods.keys() - self._read.keys():
            try:
                self._read[key] = await self._claims.fetch_pod(pods[key].namespace, key[1])
            except NodeagentError:
                continue  # it is asked again
        found: dict[str, tuple[Problem, ...]] = {}
        for key, pod in self._read.items():
            if problems := tuple(pod_problems(pods[key], pod, ready)) if pod else ():
                found[key[0]] = (*found.get(key[0], ()), *problems)
        if found != self.problems:
            self.problems = found
            self.changed.publish(None)
