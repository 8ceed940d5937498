"""Changes a GPU's MIG mode, and the compute mode of GPUs and MIG devices, in the worker thread."""

from functools import reduce

from nodeagent.errors import DriverError, DriverUnavailable, GpuLost
from nodeagent.gpu import nvml
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.nvml_errors import NOT_KNOWN, RESET_REQUIRED, driver_error
from nodeagent.gpu.observation import read_gpu
from nodeagent.gpu.original_settings import OriginalSettings
from nodeagent.gpu.steps.change import (
    Change,
    cannot_restore,
    in_use,
    mig_device,
    other_than_planned,
)
from nodeagent.gpu.steps.instances import require_idle
from nodeagent.gpu.users import GpuRef, ProcessLists, whole_gpu, with_users
from nodeagent.plan.observed import MigMode
from nodeagent.plan.shares import ComputeMode
from nodeagent.plan.steps import SetComputeMode, SetMigMode
from nodeagent.plan.users import Usage

_REREAD_PAUSES = (0.05, 0.2)  # seconds between readings of a pending mode that is not the one set


def set_mig_mode(change: Change, step: SetMigMode) -> None:
    """Make the mode current, or pending where the driver changes it only with a reset.

    Raises GpuInUse when programs keep it from changing.
    """
    gpu = change.gpu
    before = gpu.mode()
    if before == MigMode(step.enabled, step.enabled):
        return
    if before and before.current != step.enabled:
        if before.current:
            _require_idle_instances(change)
        else:
            # An Ampere card's driver takes the mode all the same, and the next reset changes it.
            known = gpu.identity()
            whole = GpuRef(known.uuid, known.minor, ())
            _require_unused(change, whole, ProcessLists(gpu.handle).on_all())
    change.require_time("changing MIG mode")
    status = nvml.set_mig_mode(gpu.handle, step.enabled)
    after = _settled_mode(change, step)
    if after and after.current == after.pending == step.enabled:
        return
    if after and after.pending == step.enabled != after.current:
        if status in {0, RESET_REQUIRED}:
            gpu.needs_reset = True  # the driver has just shown that it does not change it at once
        if gpu.mode_change_needs_reset():
            return
    if status:
        raise driver_error(status, "nvmlDeviceSetMigMode")
    raise other_than_planned("migMode", wanted=_word(step.enabled), found=_found(after))


def _require_idle_instances(change: Change) -> None:
    """Switching MIG off takes along every instance there is."""
    gpu = with_users(read_gpu(change.gpu), change.readings)
    for instance, device in gpu.mig_devices():
        require_idle(device.usage, f"{device.profile} at {instance.placement}")
    _require_unused(change, whole_gpu(gpu), gpu.usage)


def _require_unused(change: Change, gpu: GpuRef, usage: Usage) -> None:
    """Refuse to change the mode of a GPU in use. `usage` are processes on no known instance, and so
    may be on any; who was given the whole GPU need not have a process yet.
    """
    change.require_fresh()
    known = (reading.users_of_gpu(gpu) for reading in change.readings)
    usage = reduce(Usage.together, known, usage)
    if usage.in_use:
        why = f"its MIG mode is not changed: it is in use by {usage}"
        raise in_use(why, usage)


def _settled_mode(change: Change, step: SetMigMode) -> MigMode | None:
    """The mode after the call. A pending mode other than the one asked for is read again, in case
    the driver is late to report it.
    """
    after = change.read_back(lambda: _mode_after(change.gpu))
    for pause in _REREAD_PAUSES:
        if after is None or after.pending == step.enabled or not change.sleep(pause):
            break
        after = change.read_back(lambda: _mode_after(change.gpu))
    return after


def _mode_after(gpu: GpuDevice) -> MigMode | None:
    try:
        return gpu.mode()
    except DriverError as error:
        if error.code not in NOT_KNOWN:
            raise
    gpu.give_up_handle()  # the change has made it stale
    return gpu.mode()


def _found(mode: MigMode | None) -> str:
    if mode is None:
        return "not there"
    if mode.current == mode.pending:
        return _word(mode.current)
    return f"{_word(mode.current)} with {_word(mode.pending)} pending for the next GPU reset"


def _word(enabled: bool) -> str:
    return "enabled" if enabled else "disabled"


def set_compute_mode(change: Change, step: SetComputeMode, *, original: OriginalSettings) -> None:
    """Set the mode of a GPU or a MIG device and read it back.

    Who has a context already keeps it: the mode says who may get one from now on. What the mode was
    before is kept in `original`, until it is that again.
    """
    gpu = change.gpu
    name = "the GPU" if step.device == step.gpu else step.device
    device = gpu.handle if step.device == step.gpu else mig_device(step.device)
    try:
        current = nvml.compute_mode(device)
    except (GpuLost, DriverUnavailable):
        raise
    except DriverError as error:
        raise cannot_restore("compute mode", step.device, f" ({error.message})") from error
    if current is None:
        raise cannot_restore("compute mode", step.device)
    if current is not step.mode:
        change.require_time(f"setting the compute mode of {name}")
        original.remember(step.device, current)
        nvml.set_compute_mode(device, step.mode)
        found = change.read_back(lambda: nvml.compute_mode(device))
        if found is not None:
            gpu.recent.set_mode(step.device, found)
        if found is not step.mode:
            now = found or "one that is not known"
            raise other_than_planned("computeMode", name=name, wanted=step.mode, found=now)
    if step.mode is original.mode(step.device):
        original.forget(step.device, ComputeMode)
