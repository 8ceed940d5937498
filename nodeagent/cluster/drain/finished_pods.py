"""Pods that have ended although the kubelet still lists what they were given.

Kubelets before 1.34 do so. The API server is asked only while such a pod is all that blocks a GPU,
and then, with each answer of the kubelet, for as long as it goes on listing the pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import NoReturn

import structlog

from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.drain.eviction import is_in_use, pod_of_user
from nodeagent.cluster.drain.node import DrainedNode
from nodeagent.cluster.drain.pods import read_pod
from nodeagent.cluster.kubelet.allocations import PodName
from nodeagent.pacing import Backoff
from nodeagent.reconcile.active_plan import PlanEvaluation
from nodeagent.views.text import users

log = structlog.get_logger(__name__)

_AT_ONCE = 8  # requests for single pods
_SUSPECTED_FOR = 300.0  # seconds for which a suspicion is checked, unless it is raised again


class FinishedPods:
    """Checks the pods of the last observation while `run` runs; some that ended `wake` the loop."""

    def __init__(self, node: DrainedNode) -> None:
        self._node = node
        self._backoff = Backoff(*node.intervals.evict)
        self._blocking: frozenset[PodName] = frozenset()
        self._due = asyncio.Event()
        self._suspects: dict[PodName, float] = {}  # until when, in the loop's time

    def observe(self, evaluation: PlanEvaluation) -> None:
        before, self._blocking = self._blocking, _known_to_the_kubelet_alone(evaluation)
        if before != self._blocking:
            self._backoff.reset()
        if self._blocking:
            self._due.set()

    async def run(self) -> NoReturn:
        """Check until cancelled; each observation is reason for one check at most."""
        while True:
            await self._due.wait()
            self._due.clear()
            within = self._node.intervals.answer
            ended = await ended_pods(self._node.access, self._blocking, within=within)
            if ended:
                until = asyncio.get_running_loop().time() + _SUSPECTED_FOR
                self._suspects |= dict.fromkeys(ended, until)
                self._node.wake("pods have ended that the kubelet still lists")
            await asyncio.sleep(self._backoff.next())

    async def among(self, listed: Collection[PodName], within: float) -> frozenset[PodName]:
        """Which of the pods that the kubelet has listed have ended for sure, by an answer of now.

        Only suspects are asked for. One that has not ended is a new pod of the same name.
        """
        now = asyncio.get_running_loop().time()
        self._suspects = {p: t for p, t in self._suspects.items() if t > now and p in listed}
        suspects = frozenset(self._suspects)
        ended = await ended_pods(self._node.access, suspects, within=within)
        for pod in suspects - ended:  # others may have been added meanwhile
            self._suspects.pop(pod, None)
        return ended


async def ended_pods(
    access: ClusterAccess, pods: Collection[PodName], *, within: float
) -> frozenset[PodName]:
    """Which of them have ended for sure; what cannot be found out in `within` seconds has not.

    Each is asked for by itself, because only that is answered from the newest there is: a new pod
    may have the name of one that has ended.
    """
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def ended(pod: PodName) -> bool:
        try:
            async with at_once:
                found = await access.find(requests.get_pod(pod.namespace, pod.name), read_pod)
            return found is not None and found.ended
        except faults.ClusterFault as fault:
            log.debug("it is not known whether a pod has ended", error=fault.message)
            return False

    try:
        async with asyncio.timeout(within):
            found = await asyncio.gather(*map(ended, pods))
    except TimeoutError:
        log.debug("it is not known which pods have ended", error="no answer in time")
        return frozenset()
    return frozenset(pod for pod, over in zip(pods, found, strict=True) if over)


def _known_to_the_kubelet_alone(evaluation: PlanEvaluation) -> frozenset[PodName]:
    """Pods on blocked GPUs without a process that is known."""
    blocked = [gpu for gpu in (evaluation.plan.gpus if evaluation.plan else ()) if is_in_use(gpu)]
    found = [(pod_of_user(user), user.pid) for gpu in blocked for user in users(gpu.before)]
    running = {pod for pod, pid in found if pid}
    return frozenset(pod for pod, _ in found if pod and pod not in running)
