"""Steps made from what was observed, as the planner makes them."""

from nodeagent.gpu.driver import Driver
from nodeagent.plan import steps
from nodeagent.plan.names import device_name
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance, Placement
from nodeagent.plan.shares import ComputeMode, TimeSlice

REASON = "a test wants it"


def enable(gpu: Gpu) -> steps.SetMigMode:
    return steps.SetMigMode(gpu.uuid, enabled=True, reason=REASON)


def disable(gpu: Gpu) -> steps.SetMigMode:
    return steps.SetMigMode(gpu.uuid, enabled=False, reason=REASON)


def create(
    gpu: Gpu, name: str, start: int, compute: tuple[int, ...] | None = None
) -> steps.CreateGpuInstance:
    """A GPU instance of that profile there, with one compute instance or those of `compute`."""
    profile = gpu.profile(name)
    assert profile is not None
    place = next(place for place in profile.placements if place.start == start)
    sizes = (profile.slices,) if compute is None else compute
    return steps.CreateGpuInstance(gpu.uuid, profile.id, name, place, sizes, REASON)


def destroy(gpu: Gpu, instance: GpuInstance) -> steps.DestroyGpuInstance:
    return steps.DestroyGpuInstance(
        gpu.uuid,
        instance.id,
        instance.profile,
        instance.placement,
        tuple(device.uuid for device in instance.compute),
        REASON,
    )


def destroy_compute(
    gpu: Gpu, instance: GpuInstance, device: ComputeInstance
) -> steps.DestroyComputeInstance:
    return steps.DestroyComputeInstance(
        gpu.uuid, instance.id, device.id, device.profile, instance.placement, device.uuid, REASON
    )


def add_compute(gpu: Gpu, instance: GpuInstance, slices: int) -> steps.CreateComputeInstance:
    profile = gpu.profile(instance.profile)
    assert profile is not None
    name = device_name(instance.profile, profile.slices, slices)
    return steps.CreateComputeInstance(
        gpu.uuid, instance.id, name, slices, instance.placement, REASON
    )


def compute_mode(
    gpu: Gpu, mode: ComputeMode, device: ComputeInstance | None = None
) -> steps.SetComputeMode:
    return steps.SetComputeMode(gpu.uuid, device.uuid if device else gpu.uuid, mode, REASON)


def time_slice(gpu: Gpu, wanted: TimeSlice) -> steps.SetTimeSlice:
    return steps.SetTimeSlice(gpu.uuid, wanted, REASON)


async def laid_out(driver: Driver, index: int, **starts: str) -> Gpu:
    """GPU `index` with MIG on and instances as in `at0="3g.40gb", at4="1g.10gb"`, observed."""
    gpu = (await driver.observe()).gpus[index]
    if gpu.mig is None or not gpu.mig.current:
        await driver.apply(enable(gpu))
    for at, name in starts.items():
        await driver.apply(create(gpu, name, int(at.removeprefix("at"))))
    return await driver.observe_gpu(gpu.uuid)


def layout(gpu: Gpu) -> dict[Placement, tuple[str, ...]]:
    """The names of the MIG devices by place; () where an instance is half-made."""
    return {i.placement: tuple(c.profile for c in i.compute) for i in gpu.instances}
