"""How many driver calls a change takes, by function: each may take long, and most can be spared.

The necessary calls are listed by name: users and layout before, the changes, and the layout read
back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from fnmatch import fnmatchcase

from nodeagent.gpu.driver import Driver
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.planner import plan
from nodeagent.reconcile.executor import execute
from nodeagent.simulation import SimulatedNode, simulated
from tests.machine_load import stretched
from tests.plan.cards import Multiset, card, present, wanted
from tests.rig import open_driver

EMPTY = card("h100-80gb")
BEFORE: Multiset = (("1g.10gb", 7),)
AFTER: Multiset = (("3g.40gb", 1), ("2g.20gb", 1), ("1g.10gb", 2))
CHANGES = {
    "nvmlComputeInstanceDestroy": 5,
    "nvmlGpuInstanceDestroy": 5,
    "nvmlDeviceCreateGpuInstanceWithPlacement": 2,
    "nvmlGpuInstanceCreateComputeInstance": 2,
}
# Of a GPU that was looked at before; by function, all looks and steps together.
WARM = CHANGES | {
    "nvmlDeviceGetCount_v2": 1,
    "nvmlDeviceGetMigMode": 2,
    "nvmlDeviceGetGpuInstances": 4,
    "nvmlGpuInstanceGetInfo": 7 + 4,
    "nvmlDeviceGetMigDeviceHandleByIndex": 7 + 4,
    "nvmlDeviceGetUUID": 7 + 4,
    "nvmlDeviceGetComputeInstanceId": 2,
    "nvmlDeviceGetAttributes_v2": 2,
    "nvmlGpuInstanceGetComputeInstanceById": 5,
    "nvmlDeviceGetComputeRunningProcesses_v3": 3,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": 3,
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": 3,
}


async def recut(driver: Driver, layout: Multiset) -> None:
    """Observe, plan, carry out."""
    observed = await driver.observe()
    made = plan(DesiredNode({observed.gpus[0].uuid: wanted(EMPTY, layout)}), observed)
    (outcome,) = (await execute(made, driver, parallel=1)).gpus
    assert not outcome.problems
    assert present(outcome.after) == dict(layout)


def calls(node: SimulatedNode) -> dict[str, int]:
    """What was called since the journal was cleared."""
    return dict(Counter(call.name for call in node.journal.calls))


def total(found: dict[str, int], pattern: str = "*") -> int:
    """Of the functions that match."""
    return sum(count for name, count in found.items() if fnmatchcase(name, pattern))


async def test_a_running_agent_recuts_a_gpu_with_few_calls() -> None:
    """Seven instances to four: fourteen changes, and at most 75 calls with them."""
    with simulated("h100-80gb:1") as node:
        async with open_driver() as driver:
            for layout in (BEFORE, AFTER, BEFORE):
                await recut(driver, layout)
                await driver.observe()
            node.journal.clear()
            await recut(driver, AFTER)
            found = calls(node)
            assert found == WARM
            assert total(found) <= 75


async def test_devices_never_seen_before_take_two_calls_more_each() -> None:
    """Their GPU instance, and their size."""
    with simulated("h100-80gb:1") as node:
        async with open_driver() as driver:
            await recut(driver, BEFORE)
            for _ in range(2):  # the second asks again for the profiles that were denied
                await driver.observe()
            node.journal.clear()
            await recut(driver, AFTER)
            new = {
                "nvmlDeviceGetGpuInstanceId": 2,
                "nvmlGpuInstanceGetComputeInstanceProfileInfoV": 2,
            }
            assert calls(node) == WARM | new


async def test_a_fresh_process_recuts_a_gpu_with_few_calls() -> None:
    """As `nodeagent apply` does, from starting NVML to shutting it down: at most 150."""
    with simulated("h100-80gb:1") as node:
        async with open_driver() as driver:
            await recut(driver, BEFORE)
        node.journal.clear()
        async with open_driver() as driver:
            driver.details = None
            await recut(driver, AFTER)
        found = calls(node)
        assert {name: found[name] for name in CHANGES} == CHANGES
        assert total(found, "*GetGpuInstanceProfileInfo*") == 19  # each kind once, and the end
        assert total(found, "*RunningProcesses*") == 3 * 3  # both looks, and before the first goes
        assert total(found, "*MemoryInfo*") == 1
        assert not total(found, "*ComputeMode")
        assert total(found) <= 150


async def test_what_boards_have_in_common_is_asked_of_one() -> None:
    """The profiles and their places that the first has read; what it lacks may be a passing no."""
    with simulated("h100-80gb:2") as node:
        async with open_driver(observe_deadline=30) as driver:
            node.inject("nvmlDeviceGetVbiosVersion", gpu=1, hang=True)
            looking = asyncio.create_task(driver.observe())
            async with asyncio.timeout(stretched(30)):
                while not any(call.gpu == 0 for call in node.journal.named("*RunningProcesses*")):
                    await asyncio.sleep(0.001)
            node.clear_faults()
            first, second = (await looking).gpus
            places = node.journal.named("*GpuInstancePossiblePlacements*")
            assert {call.gpu for call in places} == {0}
            assert second.profiles == first.profiles != ()


async def test_what_a_card_is_is_asked_anew_after_nvml_was_started_again() -> None:
    """The driver may be another one then; within a session properties are read once."""
    static = ("*GetGpuInstanceProfileInfo*", "*GpuInstancePossiblePlacements*", "nvmlDeviceGetName")
    with simulated("h100-80gb:1") as node:
        async with open_driver() as driver:
            for _ in range(2):
                await driver.observe()
            node.journal.clear()
            await driver.observe()
            assert not any(total(calls(node), pattern) for pattern in static)
        async with driver:
            await driver.observe()
            assert all(total(calls(node), pattern) for pattern in static)
