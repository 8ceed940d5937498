"""How long `apply --wait` sleeps between two looks, in virtual time."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from nodeagent.cli.progress import wait_for_blockers
from nodeagent.plan.plan import GpuPlan, NodePlan, Verdict
from nodeagent.plan.users import Usage, User
from nodeagent.structs import replace
from tests.plan.cards import card

pytestmark = pytest.mark.virtual_time


async def slept(pid: int, limit: float) -> tuple[float, bool]:
    """Seconds until the next look at a GPU that this process uses, and whether there is one."""
    gpu = replace(card("t4"), usage=Usage((User(pid, "train"),)))
    plan = NodePlan(Verdict.BLOCKED, (GpuPlan.refused(gpu, Verdict.BLOCKED),))
    clock = asyncio.get_running_loop().time
    began = clock()
    again = await wait_for_blockers(plan, began + limit, asyncio.Event())
    return round(clock() - began, 3), again


async def test_the_end_of_a_process_is_noticed_at_once() -> None:
    """By the kernel's word, and not at the next look."""
    with subprocess.Popen(["sleep", "60"]) as process:

        def end() -> None:
            process.kill()
            process.wait()

        asyncio.get_running_loop().call_later(0.3, end)
        assert await slept(process.pid, 60) == (0.3, True)


async def test_users_are_looked_at_again_every_two_seconds() -> None:
    """A process may release a GPU without ending."""
    with subprocess.Popen(["sleep", "60"]) as process:
        assert await slept(process.pid, 60) == (2.0, True)
        process.kill()
    assert await slept(0, 60) == (2.0, True)


async def test_the_wait_ends_at_its_limit() -> None:
    """There is one more look then, and no wait after it."""
    assert await slept(0, 0.3) == (0.3, True)
    assert await slept(0, 0.0) == (0.0, False)
