"""What the driver promises, on the simulator and on whatever libnvidia-ml.so.1 the loader finds.

No test counts on ids, on a place the driver would choose or on exact sizes: what was read is
compared with what is read back. The cases that change a real GPU run only on the GPUs that
NODEAGENT_TEST_GPUS names (UUIDs, separated by commas), only while they are idle, and leave them
as they found them.
"""

import os
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import pytest

from nodeagent.errors import DriverError, NodeagentError
from nodeagent.gpu.capability_files import CapabilityUsers, UsageProbe
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.nvml_errors import is_unsupported
from nodeagent.plan.names import ProfileName
from nodeagent.plan.observed import Access, Gpu, MigMode, Placement
from nodeagent.plan.shares import ComputeMode
from nodeagent.structs import replace
from tests.gpu import steps_of
from tests.rig import driving

pytestmark = pytest.mark.timeout(600, method="thread")  # a real step may take seconds

SIMULATED = "h100-80gb:1,a100-40gb:1,a30:1,t4:1"


@dataclass(frozen=True)
class Subject:
    """A driver under test, and the UUIDs of the GPUs that may be changed."""

    driver: Driver
    changeable: tuple[str, ...]

    async def gpus(self) -> tuple[Gpu, ...]:
        return (await self.driver.observe()).gpus

    async def healthy(self) -> list[Gpu]:
        return [gpu for gpu in await self.gpus() if gpu.access is Access.OK]


def opened() -> CapabilityUsers:
    return CapabilityUsers(UsageProbe().read, deadline=60)


@pytest.fixture(params=["simulator", pytest.param("library", marks=pytest.mark.nvml)])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    if request.param == "simulator":
        async with driving(SIMULATED) as (driver, node):
            await steps_of.laid_out(driver, 0, at0="1g.10gb", at2="1g.20gb", at4="3g.40gb")
            node.occupy(3)
            yield Subject(driver, ())
    else:
        async with Driver(observe_deadline=60, step_deadline=60, sources=[opened()]) as driver:
            yield Subject(driver, ())


@pytest.fixture(params=["simulator", pytest.param("gpu", marks=pytest.mark.gpu)])
async def board(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Driver, Gpu]]:
    """An idle board that changes MIG mode at once, MIG on and empty; restored afterwards."""
    if request.param == "simulator":
        async with driving("h100-80gb:1") as (driver, _):
            await steps_of.laid_out(driver, 0, at0="1g.10gb", at2="2g.20gb")
            async for gpu in _borrowed(driver, (await driver.observe()).gpus[0]):
                yield driver, gpu
    else:
        named = os.environ["NODEAGENT_TEST_GPUS"].split(",")
        async with Driver(observe_deadline=60, step_deadline=60, sources=[opened()]) as driver:
            gpu = await driver.observe_gpu(named[0].strip())
            if gpu.mig is None or not gpu.idle:
                pytest.skip(f"{gpu.name} has no MIG, or is in use")
            if gpu.mode_change_needs_reset and not gpu.mig.current:
                pytest.skip(f"{gpu.name} needs a reset to enable MIG")
            async for borrowed in _borrowed(driver, gpu):
                yield driver, borrowed


@pytest.fixture(params=["simulator", pytest.param("gpu", marks=pytest.mark.gpu)])
async def undivided(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Driver, Gpu]]:
    """An idle GPU without MIG mode; its compute mode is restored afterwards."""
    if request.param == "simulator":
        async with driving("h100-80gb:1") as (driver, _):
            async for gpu in _with_its_mode(driver, (await driver.observe()).gpus[0]):
                yield driver, gpu
    else:
        named = os.environ["NODEAGENT_TEST_GPUS"].split(",")
        async with Driver(observe_deadline=60, step_deadline=60, sources=[opened()]) as driver:
            gpu = await driver.observe_gpu(named[0].strip())
            if (gpu.mig and gpu.mig.current) or not gpu.idle or gpu.compute_mode is None:
                pytest.skip(f"{gpu.name} is divided, in use, or does not tell its compute mode")
            async for borrowed in _with_its_mode(driver, gpu):
                yield driver, borrowed


async def _with_its_mode(driver: Driver, before: Gpu) -> AsyncIterator[Gpu]:
    assert before.compute_mode is not None
    yield before
    await driver.apply(steps_of.compute_mode(before, before.compute_mode))
    assert (await driver.observe_gpu(before.uuid)).compute_mode is before.compute_mode


async def _borrowed(driver: Driver, before: Gpu) -> AsyncIterator[Gpu]:
    """The GPU emptied for a test, and as it was before when the test is over."""
    assert before.mig is not None
    if not before.mig.current:
        await driver.apply(steps_of.enable(before))
    yield await _emptied(driver, before.uuid)
    after = await _emptied(driver, before.uuid)
    for instance in before.instances:
        slices = tuple(sorted((c.slices for c in instance.compute), reverse=True))
        await driver.apply(
            steps_of.create(after, instance.profile, instance.placement.start, slices)
        )
    if not before.mig.current:
        await driver.apply(steps_of.disable(before))
    restored = await driver.observe_gpu(before.uuid)
    assert restored.mig == before.mig
    assert _sizes(restored) == _sizes(before)


async def _emptied(driver: Driver, uuid: str) -> Gpu:
    gpu = await driver.observe_gpu(uuid)
    for instance in gpu.instances:
        await driver.apply(steps_of.destroy(gpu, instance))
    return await driver.observe_gpu(uuid)


def _sizes(gpu: Gpu) -> dict[Placement, list[str]]:
    return {place: sorted(names) for place, names in steps_of.layout(gpu).items()}


# --- looking --------------------------------------------------------------------------------------


async def test_gpus_come_in_order_and_each_is_identified_or_explained(subject: Subject) -> None:
    seen = await subject.gpus()
    assert [gpu.index for gpu in seen] == list(range(len(seen)))
    for gpu in seen:
        assert gpu.access is Access.OK or gpu.access_reason
    healthy = await subject.healthy()
    assert len({gpu.uuid for gpu in healthy}) == len(healthy)
    for gpu in healthy:
        assert gpu.uuid.startswith("GPU-")
        assert gpu.name


async def test_what_the_driver_reports_of_a_card_is_plausible(subject: Subject) -> None:
    for gpu in await subject.healthy():
        assert gpu.memory >= 0
        if gpu.pci_bus_id:
            assert re.fullmatch(
                r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.0", gpu.pci_bus_id
            )
            assert gpu.pci_device_id & 0xFFFF == 0x10DE
        if gpu.mig is None:
            assert not gpu.profiles
            assert not gpu.instances
        assert gpu.mig is None or gpu.compute_capability >= (8, 0)


async def test_profiles_have_names_that_parse_and_places_that_fit(subject: Subject) -> None:
    for gpu in await subject.healthy():
        assert len({profile.name for profile in gpu.profiles}) == len(gpu.profiles)
        assert len({profile.id for profile in gpu.profiles}) == len(gpu.profiles)
        for profile in gpu.profiles:
            name = ProfileName.parse(profile.name)
            assert name.compute == name.slices == profile.slices
            assert 0 < profile.memory <= gpu.memory
            assert all(place.size > 0 for place in profile.placements)
            assert len(set(profile.placements)) == len(profile.placements)


async def test_instances_lie_where_profiles_can_and_not_on_each_other(subject: Subject) -> None:
    for gpu in await subject.healthy():
        occupied = 0
        for instance in gpu.instances:
            profile = gpu.profile(instance.profile)
            assert profile is not None
            assert profile.id == instance.profile_id
            assert instance.placement in profile.placements
            assert not occupied & instance.placement.mask
            occupied |= instance.placement.mask
            assert sum(device.slices for device in instance.compute) <= profile.slices
        devices = [device for instance in gpu.instances for device in instance.compute]
        assert len({device.uuid for device in devices}) == len(devices)
        for device in devices:
            assert device.uuid.startswith("MIG-")
            assert device.memory is None or 0 <= device.memory.used <= device.memory.total


async def test_a_gpu_in_mig_mode_has_no_compute_mode_itself(subject: Subject) -> None:
    """It is a matter of the MIG devices then; whether the driver reports theirs is up to it."""
    for gpu in await subject.healthy():
        if gpu.mig and gpu.mig.current:
            assert gpu.compute_mode is None
        else:
            assert not gpu.instances


async def test_memory_of_mps_clients_is_reported_or_refused_in_words(subject: Subject) -> None:
    for gpu in await subject.healthy():
        devices = [device.uuid for instance in gpu.instances for device in instance.compute]
        for device in [gpu.uuid, *devices]:
            used = await _memory_of_clients(subject.driver, device)
            assert all(pid > 0 and (memory or 0) >= 0 for pid, memory in used.items())


async def _memory_of_clients(driver: Driver, device: str) -> Mapping[int, int | None]:
    try:
        return await driver.mps_memory(device)
    except DriverError as error:
        if not is_unsupported(error):
            raise
        return {}


async def test_looking_twice_shows_the_same(subject: Subject) -> None:
    first = await subject.healthy()
    for before, now in zip(first, await subject.healthy(), strict=True):
        assert _fixed(before) == _fixed(now)
        assert _fixed(before) == _fixed(await subject.driver.observe_gpu(before.uuid))


def _fixed(gpu: Gpu) -> object:
    devices = {device.uuid for instance in gpu.instances for device in instance.compute}
    return replace(gpu, instances=(), usage=gpu.usage.__class__()), steps_of.layout(gpu), devices


async def test_a_gpu_that_does_not_exist_is_reported_as_such(subject: Subject) -> None:
    with pytest.raises(DriverError, match="knows no GPU"):
        await subject.driver.observe_gpu("GPU-00000000-0000-0000-0000-000000000000")


# --- changing -------------------------------------------------------------------------------------


async def test_every_profile_can_be_created_at_every_place(board: tuple[Driver, Gpu]) -> None:
    driver, gpu = board
    assert gpu.instances == ()
    for profile in gpu.profiles:
        for place in profile.placements:
            await driver.apply(steps_of.create(gpu, profile.name, place.start))
            seen = await driver.observe_gpu(gpu.uuid)
            assert steps_of.layout(seen) == {place: (profile.name,)}
            await driver.apply(steps_of.destroy(seen, seen.instances[0]))
            assert steps_of.layout(await driver.observe_gpu(gpu.uuid)) == {}


async def test_a_taken_place_is_refused_and_nothing_changes(board: tuple[Driver, Gpu]) -> None:
    driver, gpu = board
    largest = max(gpu.profiles, key=lambda profile: profile.slices)
    await driver.apply(steps_of.create(gpu, largest.name, largest.placements[0].start))
    before = await driver.observe_gpu(gpu.uuid)
    with pytest.raises(DriverError, match="no free room"):
        await driver.apply(steps_of.create(gpu, largest.name, largest.placements[0].start))
    assert _fixed(await driver.observe_gpu(gpu.uuid)) == _fixed(before)


async def test_an_instance_can_be_divided_and_divided_anew(board: tuple[Driver, Gpu]) -> None:
    driver, gpu = board
    profile = next(profile for profile in gpu.profiles if profile.slices > 1)
    await driver.apply(steps_of.create(gpu, profile.name, profile.placements[0].start, (1, 1)))
    seen = await driver.observe_gpu(gpu.uuid)
    first, second = seen.instances[0].compute
    assert (first.slices, second.slices) == (1, 1)
    await driver.apply(steps_of.destroy_compute(seen, seen.instances[0], second))
    seen = await driver.observe_gpu(gpu.uuid)
    assert [device.uuid for device in seen.instances[0].compute] == [first.uuid]
    await driver.apply(steps_of.add_compute(seen, seen.instances[0], 1))
    seen = await driver.observe_gpu(gpu.uuid)
    assert first.uuid in {device.uuid for device in seen.instances[0].compute}
    assert [device.slices for device in seen.instances[0].compute] == [1, 1]


async def test_a_half_made_instance_is_seen_and_can_go(board: tuple[Driver, Gpu]) -> None:
    """As a crash between the two calls would leave it."""
    driver, gpu = board
    profile = gpu.profiles[0]
    place = profile.placements[0]
    await driver.apply(steps_of.create(gpu, profile.name, place.start, ()))
    seen = await driver.observe_gpu(gpu.uuid)
    assert steps_of.layout(seen) == {place: ()}
    await driver.apply(steps_of.destroy(seen, seen.instances[0]))
    assert steps_of.layout(await driver.observe_gpu(gpu.uuid)) == {}


async def test_a_step_for_a_gone_instance_changes_nothing(board: tuple[Driver, Gpu]) -> None:
    driver, gpu = board
    small, other = gpu.profiles[0], gpu.profiles[1]
    await driver.apply(steps_of.create(gpu, small.name, small.placements[0].start))
    seen = await driver.observe_gpu(gpu.uuid)
    step = steps_of.destroy(seen, seen.instances[0])
    await driver.apply(step)
    await driver.apply(steps_of.create(gpu, other.name, other.placements[0].start))
    before = await driver.observe_gpu(gpu.uuid)
    with pytest.raises(DriverError, match="any more"):
        await driver.apply(step)
    assert _fixed(await driver.observe_gpu(gpu.uuid)) == _fixed(before)


async def test_mig_mode_can_go_off_and_on(board: tuple[Driver, Gpu]) -> None:
    driver, gpu = board
    if gpu.mode_change_needs_reset:
        pytest.skip(f"{gpu.name} changes MIG mode only with a reset")
    await driver.apply(steps_of.disable(gpu))
    off = await driver.observe_gpu(gpu.uuid)
    assert off.mig == MigMode(current=False, pending=False)
    await driver.apply(steps_of.enable(gpu))
    on = await driver.observe_gpu(gpu.uuid)
    assert on.mig == MigMode(current=True, pending=True)
    assert [profile.name for profile in on.profiles] == [profile.name for profile in gpu.profiles]


async def test_compute_mode_can_be_set_and_set_back(undivided: tuple[Driver, Gpu]) -> None:
    driver, gpu = undivided
    for mode in (ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.PROHIBITED, ComputeMode.DEFAULT):
        await driver.apply(steps_of.compute_mode(gpu, mode))
        assert (await driver.observe_gpu(gpu.uuid)).compute_mode is mode
    with pytest.raises(DriverError, match="does not take that compute mode"):
        await driver.apply(steps_of.compute_mode(gpu, ComputeMode.EXCLUSIVE_THREAD))
    assert (await driver.observe_gpu(gpu.uuid)).compute_mode is ComputeMode.DEFAULT


async def test_a_compute_mode_goes_with_its_mig_device(board: tuple[Driver, Gpu]) -> None:
    driver, gpu = board
    profile = next(profile for profile in gpu.profiles if profile.slices > 1)
    start = profile.placements[0].start
    await driver.apply(steps_of.create(gpu, profile.name, start, (1, 1)))
    seen = await driver.observe_gpu(gpu.uuid)
    first = seen.instances[0].compute[0]
    await driver.apply(steps_of.compute_mode(seen, ComputeMode.EXCLUSIVE_PROCESS, first))
    seen = await driver.observe_gpu(gpu.uuid)
    modes = [device.compute_mode for device in seen.instances[0].compute]
    assert modes == [ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT]
    with pytest.raises(NodeagentError):
        await driver.apply(steps_of.compute_mode(seen, ComputeMode.EXCLUSIVE_PROCESS))
    await driver.apply(steps_of.destroy(seen, seen.instances[0]))
    await driver.apply(steps_of.create(gpu, profile.name, start))
    seen = await driver.observe_gpu(gpu.uuid)
    assert seen.instances[0].compute[0].compute_mode is ComputeMode.DEFAULT
