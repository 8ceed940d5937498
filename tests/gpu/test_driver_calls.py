import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from fnmatch import fnmatchcase

import pytest

from nodeagent.gpu.driver import Driver
from nodeagent.plan.desired import DesiredGpu, DesiredNode
from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import Policy, Verdict
from nodeagent.plan.planner import plan
from nodeagent.reconcile.executor import execute
from nodeagent.reconcile.node_controller import LastObservation
from nodeagent.reconcile.owner import Expected, GpuOwners, Part
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.structs import replace
from tests.claims.machine import Hardware
from tests.gpu.steps_of import create, destroy, enable
from tests.machine_load import until
from tests.plan.cards import Multiset, card, present, wanted
from tests.reconcile.test_owner import made, released
from tests.rig import driving, open_driver

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
    observed = await driver.observe()
    made = plan(DesiredNode({observed.gpus[0].uuid: wanted(EMPTY, layout)}), observed)
    (outcome,) = (await execute(made, driver, parallel=1)).gpus
    assert not outcome.problems
    assert present(outcome.after) == dict(layout)


def calls(node: SimulatedNode) -> dict[str, int]:
    return dict(Counter(call.name for call in node.journal.calls))


def total(found: dict[str, int], pattern: str = "*") -> int:
    return sum(count for name, count in found.items() if fnmatchcase(name, pattern))


async def test_a_running_agent_recuts_a_gpu_with_few_calls() -> None:
    async with driving("h100-80gb:1") as (driver, node):
        for layout in (BEFORE, AFTER, BEFORE):
            await recut(driver, layout)
            await driver.observe()
        node.journal.clear()
        await recut(driver, AFTER)
        found = calls(node)
        assert found == WARM
        assert total(found) <= 75


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
            await until(lambda: any(c.gpu == 0 for c in node.journal.named("*RunningProcesses*")))
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


MOST_CALLS = 30
H100, PRO_6000 = "h100-80gb", "rtx-pro-6000"

Rig = tuple[SimulatedNode, Hardware, GpuOwners, str]


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[SimulatedNode]:
    with simulated(f"{getattr(request, 'param', H100)}:1") as node:
        yield node


@pytest.fixture
async def rig(node: SimulatedNode, driver: Driver) -> AsyncIterator[Rig]:
    """A card in MIG mode, of which all is known that does not change, and its UUID."""
    hardware = Hardware(driver, LastObservation(), {})
    owners = GpuOwners(nullcontext(hardware), Policy())
    await owners.open()
    gpu = (await hardware.observe()).gpus[0]
    await driver.apply(enable(gpu))
    for profile in ("1g.10gb", "3g.40gb") if gpu.compute_capability < (10, 0) else ("1g.24gb",):
        await owners.settle(Part(gpu.uuid, made((profile, 0))))
        await owners.settle(Part(gpu.uuid, released(profile, 0)))
    await hardware.observe()
    yield node, hardware, owners, gpu.uuid
    await owners.close()


def identities(gpu: Gpu) -> list[tuple[object, ...]]:
    return [
        (
            one.id,
            one.profile_id,
            one.placement,
            [replace(device, memory=None, compute_mode=None) for device in one.compute],
        )
        for one in gpu.instances
    ]


async def test_each_slice_takes_few_calls(rig: Rig) -> None:
    node, hardware, owners, uuid = rig
    for number, start in enumerate(reversed(range(7)), start=1):
        node.journal.clear()
        outcome = await owners.settle(Part(uuid, made(("1g.10gb", start)), Expected.CREATION))
        assert node.journal.total() <= MOST_CALLS
        assert outcome.problems == ()
        assert len(outcome.after.instances) == number
        (whole,) = (await hardware.observe()).gpus
        assert identities(outcome.after) == identities(whole)
    for number, start in enumerate(range(7), start=1):
        outcome = await owners.settle(Part(uuid, released("1g.10gb", start), Expected.REMOVAL))
        assert outcome.problems == ()
        (whole,) = (await hardware.observe()).gpus
        assert identities(outcome.after) == identities(whole)
        assert len(whole.instances) == 7 - number


@pytest.mark.parametrize(
    ("node", "layout"),
    [
        (H100, [("1g.10gb", start) for start in range(7)]),
        (H100, [("1g.10gb+me", 0), *(("1g.10gb", start) for start in range(1, 7))]),
        (H100, [("1g.10gb", 0), ("3g.40gb", 4)]),
        (PRO_6000, [("1g.24gb", start) for start in range(0, 12, 3)]),
    ],
    ids=["seven", "seven with media engines", "two sizes", "of eleven profiles"],
    indirect=["node"],
)
async def test_each_slice_goes_in_few_calls(
    rig: Rig, driver: Driver, layout: list[tuple[str, int]]
) -> None:
    """Each was used when the GPU was observed last, a while ago; its user has ended since."""
    node, hardware, owners, uuid = rig
    for profile, start in layout:
        await owners.settle(Part(uuid, made((profile, start)), Expected.CREATION))
    (gpu,) = (await hardware.observe()).gpus
    for _, device in gpu.mig_devices():
        node.occupy(device.uuid)
    await hardware.observe()
    node.release()
    known = driver.pool.find(uuid)
    assert known is not None
    known.recent.clock = lambda: time.monotonic() + 60
    calls = []
    for profile, start in reversed(layout):
        node.journal.clear()
        outcome = await owners.settle(Part(uuid, released(profile, start), Expected.REMOVAL))
        calls.append(node.journal.total())
        assert outcome.problems == ()
        assert len(outcome.after.instances) == len(layout) - len(calls)
    assert max(calls) <= MOST_CALLS, calls
    assert (await hardware.observe()).gpus[0].instances == ()


async def test_users_are_looked_for_right_before_a_slice_goes(rig: Rig) -> None:
    node, _, owners, uuid = rig
    await owners.settle(Part(uuid, made(("1g.10gb", 0)), Expected.CREATION))
    node.journal.clear()
    await owners.settle(Part(uuid, released("1g.10gb", 0), Expected.REMOVAL))
    names = [call.name for call in node.journal.calls]
    destroyed = names.index("nvmlComputeInstanceDestroy")
    looked = [number for number, name in enumerate(names) if "RunningProcesses" in name]
    between = names[max(one for one in looked if one < destroyed) + 1 : destroyed]
    assert between == ["nvmlGpuInstanceGetComputeInstanceById"]
    assert names[destroyed + 1] == "nvmlGpuInstanceDestroy"
    assert "nvmlDeviceGetGpuInstances" in names[destroyed + 2 :]  # read back


@pytest.mark.parametrize("where", ["the slice", "the GPU"])
async def test_a_slice_in_use_stays(rig: Rig, where: str) -> None:
    node, hardware, owners, uuid = rig
    outcome = await owners.settle(Part(uuid, made(("1g.10gb", 0), ("1g.10gb", 1))))
    device = outcome.after.instances[0].compute[0].uuid
    node.occupy(device if where == "the slice" else 0, pid=4711)
    node.journal.clear()
    kept = await owners.settle(Part(uuid, released("1g.10gb", 0), Expected.REMOVAL))
    assert kept.plan.verdict is Verdict.BLOCKED
    assert "4711" in kept.plan.problems[0].message
    assert node.journal.total("nvml*Destroy") == 0
    assert len((await hardware.observe()).gpus[0].instances) == 2


async def test_what_another_program_did_is_read_anew(rig: Rig) -> None:
    _, hardware, owners, uuid = rig
    given: list[list[tuple[str, int]]] = []

    async def looked(gpu: Gpu) -> DesiredGpu:
        given.append([(one.profile, one.placement.start) for one in gpu.instances])
        return await made(("1g.10gb", 6))(gpu)

    async with Driver(observe_deadline=30, step_deadline=30) as other:
        (gpu,) = (await other.observe()).gpus
        await other.apply(create(gpu, "1g.10gb", 0))
        await owners.settle(Part(uuid, looked, Expected.CREATION))
        assert given[-1] == [("1g.10gb", 0)]
        (gpu,) = (await other.observe()).gpus
        await other.apply(destroy(gpu, gpu.instances[0]))
        await other.apply(create(gpu, "2g.20gb", 0))
        await owners.settle(Part(uuid, looked, Expected.CREATION))
        assert given[-1] == [("2g.20gb", 0), ("1g.10gb", 6)]
    (whole,) = (await hardware.observe()).gpus
    assert [one.profile for one in whole.instances] == ["2g.20gb", "1g.10gb"]


async def test_more_than_an_addition_is_planned_with_all_that_is_known(rig: Rig) -> None:
    """A process that came since the last look keeps its device, whatever the goal was called."""
    node, hardware, owners, uuid = rig
    outcome = await owners.settle(Part(uuid, made(("1g.10gb", 0)), Expected.CREATION))
    node.occupy(outcome.after.instances[0].compute[0].uuid, pid=4711)
    seen = hardware.seen
    assert seen is not None
    assert not seen.gpus[0].instances[0].compute[0].usage.in_use
    kept = await owners.settle(Part(uuid, released("1g.10gb", 0), Expected.CREATION))
    assert "4711" in kept.plan.problems[0].message
    assert len((await hardware.observe()).gpus[0].instances) == 1
