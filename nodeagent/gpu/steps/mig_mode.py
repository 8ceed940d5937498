"""Changes a GPU's MIG mode, in the GPU's worker thread."""

from __future__ import annotations

from nodeagent.errors import DriverError, GpuInUse
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.nvml_errors import INVALID_ARGUMENT, NOT_FOUND, RESET_REQUIRED, driver_error
from nodeagent.gpu.observation import read_gpu
from nodeagent.gpu.steps.change import Change, otherwise
from nodeagent.gpu.steps.destruction import insist_on_idle
from nodeagent.gpu.usage import WholeGpu, whole_gpu, with_users
from nodeagent.plan.observed import MigMode
from nodeagent.plan.steps import SetMigMode

_READ_AGAIN = (0.05, 0.2)  # seconds between readings of a pending mode that is not the one set


def set_mig_mode(change: Change, step: SetMigMode) -> None:
    """Make the mode current, or pending where the driver changes it only with a reset.

    Raises GpuInUse when programs keep it from changing.
    """
    card = change.card
    before = card.mode()
    if before == MigMode(step.enabled, step.enabled):
        return
    if before and before.current != step.enabled:
        if before.current:
            _insist_on_idle_instances(change)
        else:
            known = card.identity()
            _insist_on_nobodys(change, WholeGpu(known.uuid, known.minor, ()))
    change.insist_on_time("changing MIG mode")
    status = card.nvml.set_mig_mode(card.handle, step.enabled)
    after = _settled_mode(change, step)
    if after and after.current == after.pending == step.enabled:
        return
    if after and after.pending == step.enabled != after.current:
        if status in {0, RESET_REQUIRED}:
            card.mode_waits_for_reset()
        if card.mode_change_needs_reset():
            return
    if status:
        raise driver_error(status, "nvmlDeviceSetMigMode")
    raise otherwise(
        f"MIG mode was to become {_word(step.enabled)} and the driver reported success, but it is "
        f"{_found(after)}"
    )


def _insist_on_idle_instances(change: Change) -> None:
    """Switching MIG off takes along every instance there is."""
    gpu = with_users(read_gpu(change.card), change.readings)
    if change.allocations is not None:
        gpu = with_users(gpu, [change.allocations])
    for instance in gpu.instances:
        for device in instance.compute:
            insist_on_idle(device.usage, f"{device.profile} at {instance.placement}")
    _insist_on_nobodys(change, whole_gpu(gpu))


def _insist_on_nobodys(change: Change, gpu: WholeGpu) -> None:
    """Who was given the GPU as a whole need not have a process yet that would keep the mode."""
    if change.allocations is None:
        return
    usage = change.allocations.users_of_gpu(gpu)
    if usage.in_use:
        raise GpuInUse(
            f"MIG mode of GPU {change.card.index} is not changed: it is in use by {usage}",
            code=None,
            name="InUse",
            call="",
            remedy="end what uses it, or wait for it",
        )


def _settled_mode(change: Change, step: SetMigMode) -> MigMode | None:
    """The mode after the call. A pending mode other than the one asked for is read again, in case
    the driver is late to report it.
    """
    after = change.read_back(lambda: _mode_after(change.card))
    for pause in _READ_AGAIN:
        if after is None or after.pending == step.enabled or not change.sleep(pause):
            break
        after = change.read_back(lambda: _mode_after(change.card))
    return after


def _mode_after(card: GpuDevice) -> MigMode | None:
    try:
        return card.mode()
    except DriverError as error:
        if error.code not in {NOT_FOUND, INVALID_ARGUMENT}:
            raise
    card.give_up_handle()  # the change has made it stale
    return card.mode()


def _found(mode: MigMode | None) -> str:
    if mode is None:
        return "not there"
    if mode.current == mode.pending:
        return _word(mode.current)
    return f"{_word(mode.current)} with {_word(mode.pending)} pending for the next GPU reset"


def _word(enabled: bool) -> str:
    return "enabled" if enabled else "disabled"
