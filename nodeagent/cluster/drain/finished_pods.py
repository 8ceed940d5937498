"""Pods that have ended, and that block a GPU only because the kubelet still lists them.

Kubelets before 1.34 go on listing what a finished pod was given. That is asked of the API server
while such a pod is all that is in the way, and never else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NoReturn

from nodeagent.cluster.drain.pods_of_node import PodsOfNode
from nodeagent.cluster.kubelet.allocations import PodName
from nodeagent.plan.observed import User
from nodeagent.plan.plan import GpuPlan, Verdict
from nodeagent.plan.problems import Code
from nodeagent.reconcile.active_plan import Judgement
from nodeagent.views.text import users

KubeletSuspect = Callable[[Iterable[PodName]], None]
"""Takes pods that have ended although the kubelet lists them."""


class FinishedPods:
    """Looks into what `look` was told last, while `run` runs.

    `again` are the seconds between two questions, which double up to `longest` while nothing
    comes of them; `answer` is how long the API server may take.
    """

    def __init__(
        self,
        pods: PodsOfNode,
        *,
        suspect: KubeletSuspect | None,
        wake: Callable[[str], None],
        again: float,
        longest: float,
        answer: float,
    ) -> None:
        self._pods = pods
        self._suspect = suspect
        self._wake = wake
        self._again = again
        self._longest = longest
        self._answer = answer
        self._asked: frozenset[PodName] = frozenset()
        self._pause = again
        self._due = asyncio.Event()

    def look(self, judgement: Judgement) -> None:
        """The GPUs are like this now."""
        if self._suspect is None:
            return
        before, self._asked = self._asked, _listed_only(judgement)
        if before != self._asked:
            self._pause = self._again
        if self._asked:
            self._due.set()

    async def run(self) -> NoReturn:
        """Ask until cancelled; each look asks once at most."""
        while True:
            await self._due.wait()
            self._due.clear()
            over = await self._pods.ended(self._asked, within=self._answer)
            if over and self._suspect is not None:
                self._suspect(over)
                self._wake("pods have ended that the kubelet still lists")
            pause, self._pause = self._pause, min(2 * self._pause, self._longest)
            await asyncio.sleep(pause)


def _listed_only(judgement: Judgement) -> frozenset[PodName]:
    """Pods on blocked GPUs of which only the kubelet knows."""
    blocked = [gpu for gpu in (judgement.plan.gpus if judgement.plan else ()) if _in_use(gpu)]
    everyone = [user for gpu in blocked for user in users(gpu.before) if user.pod]
    running = {_pod_of(user) for user in everyone if user.pid}
    return frozenset(_pod_of(user) for user in everyone) - running


def _in_use(gpu: GpuPlan) -> bool:
    return gpu.verdict is Verdict.BLOCKED and any(p.code is Code.IN_USE for p in gpu.problems)


def _pod_of(user: User) -> PodName:
    return PodName(user.namespace, user.pod)
