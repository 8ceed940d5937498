"""Waiting for those who use what must go."""

from __future__ import annotations

import asyncio

from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.processes import ProcessWatch
from nodeagent.views.text import user_words, users

# A process may also let go of a GPU without ending, which the kernel does not report.
_LOOK_AGAIN = 2.0  # seconds


async def wait_for_blockers(plan: NodePlan, deadline: float, stop: asyncio.Event) -> bool:
    """Wait until one of them may be gone; False when `deadline` (loop time) or a stop came first.

    The kernel reports a process' end; everything else is looked at again every two seconds.
    """
    remaining = deadline - asyncio.get_running_loop().time()
    if remaining <= 0 or stop.is_set():
        return False
    wake = asyncio.Event()
    watch = ProcessWatch(wake.set, fallback=_LOOK_AGAIN, fallback_limit=_LOOK_AGAIN)
    watch.watch(_pids(plan))
    waiters = [asyncio.ensure_future(event.wait()) for event in (wake, stop)]
    try:
        await asyncio.wait(
            waiters,
            timeout=min(remaining, _LOOK_AGAIN),
            return_when=asyncio.FIRST_COMPLETED,
        )
    finally:
        watch.close()
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
    return not stop.is_set()


def blocker_words(plan: NodePlan) -> str:
    """`the users of GPU 0 (pid 4711 (train))`, for each GPU that is blocked."""
    blocked = (gpu.before for gpu in plan.gpus if gpu.verdict is Verdict.BLOCKED)
    return ", ".join(f"the users of GPU {gpu.index} ({user_words(gpu)})" for gpu in blocked)


def _pids(plan: NodePlan) -> set[int]:
    blocked = [gpu.before for gpu in plan.gpus if gpu.verdict is Verdict.BLOCKED]
    return {user.pid for gpu in blocked for user in users(gpu)}
