"""Finds out whether admission policies hold the agent's account to what is an agent's.

A policy that was refused, was deleted, or names another account leaves no other trace. So a change
that every one of them must deny is tried, as a dry run and of a key that means nothing.
"""

import asyncio
from typing import Final, NoReturn

from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.plan.problems import Code, Problem
from nodeagent.signals import Signal

FOREIGN: Final = "guard.nodeagent.io/probe"
"""An annotation that no agent may write."""
_INTERVAL: Final = 3600.0  # seconds
_SOON: Final = 60.0  # seconds; policies may be applied after the agent


async def is_guarded(access: ClusterAccess, node: str) -> bool:
    """Whether the policies deny what they must. Raises ClusterFault if that is not known."""
    foreign = {"metadata": {"annotations": {FOREIGN: ""}}}
    try:
        await access.send(requests.patch_node(node, foreign, dry_run=True))
    except faults.NotAllowed:
        return True
    except faults.RequestRefused as fault:
        if "denied" not in fault.message:  # a webhook that knows no dry runs, say
            raise
        return True
    return False


class NodeGuard:
    """Looks while `run` runs. `problem` is None while the account is limited, or not known to be
    unlimited.
    """

    def __init__(self, access: ClusterAccess, node: str) -> None:
        self._access = access
        self._node = node
        self.problem: Signal[Problem | None] = Signal(None)

    async def run(self) -> NoReturn:
        while True:
            problem, wait = self.problem.newest, _SOON
            try:
                if await is_guarded(self._access, self._node):
                    problem, wait = None, _INTERVAL
                else:
                    problem = Problem.of(Code.UNGUARDED)
            except faults.ClusterFault:
                pass  # who follows the Node reports it
            if problem != self.problem.newest:
                self.problem.publish(problem)
            await asyncio.sleep(wait)
