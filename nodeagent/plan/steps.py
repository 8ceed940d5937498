"""The closed list of things the agent can do to a GPU, each with the reason why."""

from collections.abc import Callable, Iterable
from typing import assert_never

from nodeagent.plan import observed
from nodeagent.plan.names import device_name
from nodeagent.plan.shares import ComputeMode, TimeSlice, WantedMps
from nodeagent.structs import Struct, replace


class SetMigMode(Struct, frozen=True):
    """Switch MIG mode; on some cards it stays pending until a reset."""

    gpu: str
    enabled: bool
    reason: str


class ResetGpu(Struct, frozen=True):
    """Reset a GPU that was proven idle, so that a pending MIG mode becomes current."""

    gpu: str
    reason: str


class DestroyGpuInstance(Struct, frozen=True):
    """Destroy a GPU instance with all compute instances in it (`devices`: their UUIDs)."""

    gpu: str
    instance: int
    profile: str
    placement: observed.Placement
    devices: tuple[str, ...]
    reason: str


class DestroyComputeInstance(Struct, frozen=True):
    """Destroy one compute instance; its GPU instance stays. `placement` is the latter's."""

    gpu: str
    instance: int
    compute: int
    profile: str
    placement: observed.Placement
    device: str
    reason: str


class CreateGpuInstance(Struct, frozen=True):
    """Create a GPU instance at a placement and fill it with compute instances.

    `compute` lists their sizes in compute slices, largest first.
    """

    gpu: str
    profile_id: int
    profile: str
    placement: observed.Placement
    compute: tuple[int, ...]
    reason: str


class CreateComputeInstance(Struct, frozen=True):
    """Add a compute instance of `slices` to a GPU instance that is there already.

    `profile` is the device's name, `placement` that of the GPU instance.
    """

    gpu: str
    instance: int
    profile: str
    slices: int
    placement: observed.Placement
    reason: str


class StopMps(Struct, frozen=True):
    """End the MPS daemon of `device`, which has no client: a GPU, or a MIG device, whose
    `profile` and `placement` (of its GPU instance) are given too.
    """

    gpu: str
    device: str
    reason: str
    profile: str = ""
    placement: observed.Placement | None = None


class StartMps(Struct, frozen=True):
    """Have an MPS daemon for a device be as `wanted`, with every limit read back.

    `device` is empty for a MIG device that an earlier step makes: it is then any of this
    `profile` in the GPU instance at `placement` that has no daemon yet. `runs` means that there is
    a daemon already, which only gets other limits or shares and is not restarted.
    """

    gpu: str
    device: str
    wanted: WantedMps
    reason: str
    profile: str = ""
    placement: observed.Placement | None = None
    runs: bool = False


class SetComputeMode(Struct, frozen=True):
    """Set who may have a context on a device; `device`, `profile`, `placement` as in StartMps.

    The mode before the first change is remembered until the device has it again.
    """

    gpu: str
    device: str
    mode: ComputeMode
    reason: str
    profile: str = ""
    placement: observed.Placement | None = None


class SetTimeSlice(Struct, frozen=True):
    """Set the GPU's time-slice interval; the one before is remembered as a compute mode is."""

    gpu: str
    time_slice: TimeSlice
    reason: str


Destruction = DestroyGpuInstance | DestroyComputeInstance
# What the driver does by itself; an MPS daemon is a process, and no matter of the driver.
GpuStep = (
    SetMigMode
    | ResetGpu
    | DestroyGpuInstance
    | DestroyComputeInstance
    | CreateGpuInstance
    | CreateComputeInstance
    | SetComputeMode
    | SetTimeSlice
)
Step = GpuStep | StopMps | StartMps


# --- their effect -----------------------------------------------------------------------------
# To show GPUs as they will be after a plan, and for tests that cut plans short. What the hardware
# has become is always read back.

_Compute = tuple[observed.ComputeInstance, ...]


def after(gpu: observed.Gpu, steps: Iterable[Step]) -> observed.Gpu:
    """The GPU once `steps` are done. Ids not yet given by the driver are negative, UUIDs empty."""
    for step in steps:
        gpu = _after(gpu, step)
    return gpu


def _after(gpu: observed.Gpu, step: Step) -> observed.Gpu:
    match step:
        case SetMigMode(enabled=enabled) if gpu.mode_change_needs_reset:
            return replace(gpu, mig=observed.MigMode(gpu.in_mig_mode, enabled))
        case SetMigMode(enabled=enabled):
            instances = gpu.instances if enabled else ()
            changed = gpu if enabled is gpu.in_mig_mode else _unshared(gpu, mig=enabled)
            return replace(changed, mig=observed.MigMode(enabled, enabled), instances=instances)
        case ResetGpu():
            on = gpu.mig is not None and gpu.mig.pending
            return replace(_unshared(gpu, mig=on), mig=observed.MigMode(on, on), instances=())
        case DestroyGpuInstance(instance=gone):
            return replace(gpu, instances=tuple(i for i in gpu.instances if i.id != gone))
        case DestroyComputeInstance(instance=instance, compute=gone):
            return _edit(gpu, instance, lambda present: tuple(c for c in present if c.id != gone))
        case CreateGpuInstance():
            return replace(gpu, instances=(*gpu.instances, _created(gpu, step)))
        case CreateComputeInstance(instance=instance):
            return _edit(gpu, instance, lambda present: _added(present, step))
        case StopMps() | StartMps() | SetComputeMode():
            return _after_sharing(gpu, step)
        case SetTimeSlice(time_slice=time_slice):
            before = gpu.earlier_time_slice or gpu.time_slice
            # An interval that was not known is taken for the driver's own.
            earlier = None if before is time_slice else before or TimeSlice.DEFAULT
            return replace(gpu, time_slice=time_slice, earlier_time_slice=earlier)
        case _:
            assert_never(step)


def _unshared(gpu: observed.Gpu, *, mig: bool) -> observed.Gpu:
    """The GPU with the driver's defaults for sharing, as a change of the MIG mode leaves them."""
    mode = None if mig else ComputeMode.DEFAULT
    return replace(gpu, mps=None, compute_mode=mode, time_slice=None)


def _created(gpu: observed.Gpu, step: CreateGpuInstance) -> observed.GpuInstance:
    profile = gpu.profile(step.profile)
    whole = profile.slices if profile else max(step.compute, default=0)
    compute = tuple(
        _new_device(i, device_name(step.profile, whole, slices), slices)
        for i, slices in enumerate(step.compute)
    )
    number = -1 - step.placement.start
    return observed.GpuInstance(number, step.profile_id, step.profile, step.placement, compute)


def _added(present: _Compute, step: CreateComputeInstance) -> _Compute:
    taken = {c.id for c in present}
    free = next(i for i in range(len(taken) + 1) if i not in taken)
    return (*present, _new_device(free, step.profile, step.slices))


def _new_device(number: int, profile: str, slices: int) -> observed.ComputeInstance:
    return observed.ComputeInstance(number, profile, slices, "", compute_mode=ComputeMode.DEFAULT)


def _edit(gpu: observed.Gpu, instance: int, change: Callable[[_Compute], _Compute]) -> observed.Gpu:
    edited = tuple(
        replace(i, compute=change(i.compute)) if i.id == instance else i for i in gpu.instances
    )
    return replace(gpu, instances=edited)


def _after_sharing(gpu: observed.Gpu, step: StopMps | StartMps | SetComputeMode) -> observed.Gpu:
    if step.device == gpu.uuid:
        return _with_sharing(gpu, step)
    meant = next((c for i, c in gpu.mig_devices() if _is_meant(step, i, c)), None)
    return gpu.with_mig_devices(lambda _, c: _with_sharing(c, step) if c is meant else c)


def _is_meant(
    step: StopMps | StartMps | SetComputeMode,
    instance: observed.GpuInstance,
    device: observed.ComputeInstance,
) -> bool:
    """Whether the step is for this device: by UUID, or without one a new one without daemon."""
    if step.device:
        return device.uuid == step.device
    kind = (instance.placement, device.profile) == (step.placement, step.profile)
    return kind and not device.uuid and device.mps is None


def _with_sharing(
    device: observed.Place, step: StopMps | StartMps | SetComputeMode
) -> observed.Place:
    match step:
        case StopMps():
            servers = device.mps.servers if device.mps else ()
            return replace(device, mps=None, usage=device.usage.without(servers))
        case StartMps(wanted=wanted):
            daemon = device.mps or observed.DeviceDaemon(wanted, "Starting")
            return replace(device, mps=replace(daemon, runs=wanted))
        case SetComputeMode(mode=mode):
            before = device.earlier_mode or device.compute_mode
            earlier = None if before is mode else before
            return replace(device, compute_mode=mode, earlier_mode=earlier)
        case _:
            assert_never(step)
