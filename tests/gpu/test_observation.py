import time

import pytest

from nodeagent.gpu.driver import Driver
from nodeagent.plan.observed import Access, Gpu, MigMode, Placement
from nodeagent.simulation import SimulatedNode, Switches, simulated
from tests.gpu.steps_of import create, destroy, enable, laid_out, layout
from tests.rig import driving

GIB = 1 << 30


async def first_gpu(boards: str, switches: Switches | None = None) -> Gpu:
    async with driving(boards, switches=switches) as (driver, _):
        return (await driver.observe()).gpus[0]


# --- the card -------------------------------------------------------------------------------------


async def test_a_gpus_identity_is_read(driver: Driver) -> None:
    node = await driver.observe()
    first, second = node.gpus
    assert node.driver_version.count(".") == 2
    assert (first.index, second.index) == (0, 1)
    assert first.uuid.startswith("GPU-")
    assert first.uuid != second.uuid
    assert first.name == "NVIDIA H100 80GB HBM3"
    assert first.pci_bus_id.count(":") == 2
    assert first.pci_device_id == 0x233010DE
    assert (first.minor, second.minor) == (0, 1)
    assert 79 * GIB < first.memory < 80 * GIB
    assert first.compute_capability == (9, 0)
    assert first.cuda_version == (13, 2)
    assert first.mig == MigMode(current=False, pending=False)
    assert not first.mode_change_needs_reset
    assert not first.no_reset
    assert first.access is Access.OK


@pytest.mark.parametrize(("board", "needs_reset"), [("a100-40gb", True), ("b200", False)])
@pytest.mark.parametrize("missing", [(), ("nvmlDeviceGetFieldValues",)])
async def test_whether_a_mode_change_needs_a_reset_is_reported_or_follows_from_the_generation(
    board: str, needs_reset: bool, missing: tuple[str, ...]
) -> None:
    gpu = await first_gpu(board, Switches(missing_functions=missing))
    assert gpu.mode_change_needs_reset is needs_reset


async def test_passthrough_is_seen() -> None:
    """There a reset does not do; the machine must be rebooted."""
    assert (await first_gpu("a100-40gb", Switches(passthrough=True))).no_reset


async def test_drivers_that_hide_profiles_while_mig_is_off_are_asked_again_when_it_is_on() -> None:
    """R535 and older; while it is off they are asked just once."""
    async with driving("h100-80gb:1", switches=Switches(profiles_need_mig=True)) as (driver, node):
        gpu = (await driver.observe()).gpus[0]
        assert gpu.profiles == ()
        node.journal.clear()
        await driver.observe()
        assert node.journal.total("*Profile*") == 0
        await driver.apply(enable(gpu))
        assert len((await driver.observe()).gpus[0].profiles) == 7


# --- instances ------------------------------------------------------------------------------------


async def test_split_instances_are_read_part_by_part(driver: Driver) -> None:
    gpu = await laid_out(driver, 0)
    await driver.apply(create(gpu, "3g.40gb", 4, (2, 1)))
    await driver.apply(create(gpu, "4g.40gb", 0, (1, 1, 1)))
    gpu = await driver.observe_gpu(gpu.uuid)
    four, three = gpu.instances
    assert [c.profile for c in three.compute] == ["2c.3g.40gb", "1c.3g.40gb"]
    assert [c.slices for c in three.compute] == [2, 1]
    assert [c.profile for c in four.compute] == ["1c.4g.40gb"] * 3
    for instance in gpu.instances:
        places = [c.placement for c in instance.compute]
        assert None not in places
        masks = [place.mask for place in places if place]
        assert sum(masks) == masks[0] | masks[1] | masks[-1]  # none lies on another
        assert len({c.uuid for c in instance.compute}) == len(masks)


async def test_compute_profiles_are_learnt_and_kept(driver: Driver, node: SimulatedNode) -> None:
    """NVML reports them only through an instance; they are still known when it is gone."""
    gpu = await laid_out(driver, 0, at0="3g.40gb")
    three = gpu.profile("3g.40gb")
    assert three is not None
    assert {c.slices for c in three.compute} == {1, 2, 3}
    assert all(c.placements for c in three.compute)
    node.journal.clear()
    await driver.observe()
    assert node.journal.total("*ComputeInstanceProfile*") == 0


async def test_compute_instances_without_a_mig_device_are_seen_nevertheless() -> None:
    """Where the driver shows no MIG devices, an instance must not pass for half-made."""
    missing = ("nvmlDeviceGetMigDeviceHandleByIndex",)
    async with driving("h100-80gb:1", switches=Switches(missing_functions=missing)) as (driver, _):
        gpu = await laid_out(driver, 0, at0="3g.40gb")
        (device,) = gpu.instances[0].compute
        assert (device.uuid, device.slices) == ("", 3)


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("nvmlGpuInstanceGetInfo", "NOT_FOUND"),
        ("nvmlDeviceGetGpuInstanceId", "INVALID_ARGUMENT"),
        ("nvmlDeviceGetUUID", "NOT_FOUND"),
    ],
)
async def test_an_instance_that_goes_while_it_is_read_makes_it_read_again(
    driver: Driver, node: SimulatedNode, function: str, code: str
) -> None:
    gpu = await laid_out(driver, 0, at0="3g.40gb", at4="1g.10gb")
    node.inject(function, error=code, skip=1)
    again = await driver.observe_gpu(gpu.uuid)
    assert again == gpu


async def test_instances_that_never_hold_still(driver: Driver, node: SimulatedNode) -> None:
    gpu = await laid_out(driver, 0, at0="3g.40gb")
    node.inject("nvmlGpuInstanceGetInfo", error="NOT_FOUND", times=None)
    again = await driver.observe_gpu(gpu.uuid)
    assert again.access is Access.UNKNOWN
    assert "nvmlGpuInstanceGetInfo" in again.access_reason
    assert again.instances == gpu.instances  # what was last known
    node.clear_faults()
    assert (await driver.observe_gpu(gpu.uuid)).access is Access.OK


# --- users ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["compute", "graphics", "mps"])
async def test_every_kind_of_process_counts(driver: Driver, node: SimulatedNode, kind: str) -> None:
    gpu = await laid_out(driver, 0, at0="3g.40gb", at4="3g.40gb")
    process = node.occupy(gpu.instances[1].compute[0].uuid, kind=kind, memory=GIB)
    gpu = await driver.observe_gpu(gpu.uuid)
    assert not gpu.instances[0].in_use
    (user,) = gpu.instances[1].compute[0].usage.processes
    assert (user.pid, user.command, user.memory) == (process.pid, "python", GIB)
    assert user.source == ("mps" if kind == "mps" else "process")
    assert not gpu.usage.in_use
    assert not gpu.idle


async def test_processes_of_no_instance_are_the_gpus(driver: Driver, node: SimulatedNode) -> None:
    node.occupy(0)
    first, second = (await driver.observe()).gpus
    assert first.usage.in_use
    assert second.idle
    gpu = await laid_out(driver, 1, at0="3g.40gb")
    node.occupy(1)
    gpu = await driver.observe_gpu(gpu.uuid)
    assert gpu.usage.in_use
    assert not gpu.instances[0].in_use


async def test_a_list_refused_for_the_gpu_alone(driver: Driver, node: SimulatedNode) -> None:
    gpu = await laid_out(driver, 0, at0="3g.40gb", at4="3g.40gb")
    node.occupy(gpu.instances[1].compute[0].uuid)
    node.inject("nvmlDeviceGetComputeRunningProcesses_v3", error="NO_PERMISSION", times=1)
    gpu = await driver.observe_gpu(gpu.uuid)
    assert gpu.access is Access.OK
    assert not gpu.instances[0].in_use
    assert [u.command for u in gpu.instances[1].compute[0].usage.processes] == ["python"]
    assert not gpu.usage.known
    assert "root" in gpu.usage.reason


@pytest.mark.parametrize("name", ["Graphics", "MPSCompute"])
async def test_a_card_without_graphics_or_mps_has_no_such_processes(name: str) -> None:
    """NOT_SUPPORTED or a missing function of those lists means none."""
    missing = tuple(f"nvmlDeviceGet{name}RunningProcesses_v{n}" for n in (2, 3))
    with simulated("h100-80gb:1", switches=Switches(missing_functions=missing)) as node:
        node.inject("nvmlDeviceGet*RunningProcesses*", error="NOT_SUPPORTED", skip=1, times=1)
        async with Driver(observe_deadline=30, step_deadline=30) as driver:
            assert (await driver.observe()).gpus[0].idle


# --- how many calls -------------------------------------------------------------------------------


async def test_an_observation_takes_few_driver_calls(driver: Driver, node: SimulatedNode) -> None:
    """Each may take 50 ms. These are the figures that the documentation gives."""

    async def calls() -> int:
        node.journal.clear()
        await driver.observe_gpu(gpu.uuid)
        return node.journal.total()

    gpu = (await driver.observe()).gpus[0]
    assert await calls() == 5  # MIG off: the mode, three process lists and the compute mode
    await driver.apply(enable(gpu))
    assert await calls() <= 4 + 1 + 7 + 7  # no instance: one list a profile, each MIG index
    for start in range(7):
        await driver.apply(create(gpu, "1g.10gb", start))
    await calls()
    assert await calls() == 4 + 1 + 7 * 3
    for instance in (await driver.observe_gpu(gpu.uuid)).instances:
        await driver.apply(destroy(gpu, instance))
    await driver.apply(create(gpu, "7g.80gb", 0))
    await calls()
    assert await calls() == 4 + 1 + 5  # nothing more has room, so no other index is tried


async def test_a_node_with_56_devices_is_observed_in_no_time() -> None:
    """Under 40 ms on an idle machine; here in processor time, with room for a slower one."""
    async with driving("h100-80gb:8") as (driver, _):
        for index in range(8):
            await laid_out(driver, index, **{f"at{start}": "1g.10gb" for start in range(7)})
        best = min([await _seconds(driver) for _ in range(5)])
    assert best < 0.1


async def _seconds(driver: Driver) -> float:
    began = time.process_time()
    node = await driver.observe()
    assert sum(len(gpu.instances) for gpu in node.gpus) == 56
    return time.process_time() - began


async def test_profiles_of_a_newer_driver_are_found() -> None:
    changes = {"kind": 19, "compute": {"1": {"id": 10}}}
    async with driving(
        "h100-80gb", overrides={"h100-80gb": {"profiles": {"2g.20gb": changes}}}
    ) as (driver, _):
        gpu = await laid_out(driver, 0, at2="2g.20gb")
    assert layout(gpu) == {Placement(2, 2): ("2g.20gb",)}
