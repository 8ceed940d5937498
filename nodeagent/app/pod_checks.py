"""Whether pods go together with the devices of their claims.

Each pod is read once, and every minute while something is wrong with it, or it may not be read: the
kubelet names no uids, and so does not tell it from one that came in its place.
"""

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
from nodeagent.waiting import ends_within

_Key = tuple[str, str]  # the claim's uid, the pod's name
_INTERVAL = 60.0  # seconds until pods are read again


class PodChecks:
    """Checks the pods of all ready claims of the node, while `run` runs."""

    def __init__(self, claims: NodeClaims, interval: float = _INTERVAL) -> None:
        self._claims = claims
        self._interval = interval
        self._read: dict[_Key, PodObject | None] = {}
        self._doubtful: set[_Key] = set()  # of those, what is read again
        self._again_at = 0.0
        self.problems: Mapping[str, tuple[Problem, ...]] = {}  # by the claim's uid
        self._woken = asyncio.Event()
        self.changed: Signal[None] = Signal(None)

    def wake(self) -> None:
        """Check at once: claims or their pods may have changed."""
        self._woken.set()

    async def run(self) -> NoReturn:
        while True:
            await self._round()
            await ends_within(self._interval, self._woken.wait())
            self._woken.clear()

    async def _round(self) -> None:
        ready = [one for one in self._claims.store.records if one.phase is RecordPhase.READY]
        pods = {
            (record.uid, pod.name): record
            for record in filter(has_mps, ready)
            for pod in self._claims.pods.of((record.namespace, record.name))
        }
        self._read = {key: pod for key, pod in self._read.items() if key in pods}
        due = pods.keys() - self._read.keys()
        if (now := asyncio.get_running_loop().time()) >= self._again_at:
            self._again_at = now + self._interval
            due |= self._doubtful & pods.keys()
        for key in due:
            try:
                self._read[key] = await self._claims.fetch_pod(pods[key].namespace, key[1])
            except NodeagentError:
                continue  # it is asked again
        self._doubtful = {key for key, pod in self._read.items() if pod is None}
        found: dict[str, tuple[Problem, ...]] = {}
        for key, pod in self._read.items():
            if problems := tuple(pod_problems(pods[key], pod, ready)) if pod else ():
                found[key[0]] = (*found.get(key[0], ()), *problems)
                self._doubtful.add(key)
        if found != self.problems:
            self.problems = found
            self.changed.publish(None)
