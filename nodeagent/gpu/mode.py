"""Changes a GPU's MIG mode, in the GPU's worker thread."""

from __future__ import annotations

from nodeagent.errors import DriverError
from nodeagent.gpu.card import Card
from nodeagent.gpu.change import Change, otherwise
from nodeagent.gpu.destruction import insist_on_idle
from nodeagent.gpu.nvml_errors import INVALID_ARGUMENT, NOT_FOUND, driver_error
from nodeagent.gpu.observation import read_gpu
from nodeagent.gpu.usage import with_users
from nodeagent.planning.observed import MigMode
from nodeagent.planning.steps import SetMigMode


def set_mig_mode(change: Change, step: SetMigMode) -> None:
    """Make the mode current, or pending on a card that changes it only with a reset.

    Raises GpuInUse when programs keep it from changing.
    """
    card = change.card
    before = card.mode()
    if before == MigMode(step.enabled, step.enabled):
        return
    if before and before.current and not step.enabled:
        _insist_on_idle_instances(change)
    change.insist_on_time("changing MIG mode")
    status = card.nvml.set_mig_mode(card.handle, step.enabled)
    after = _mode_after(card)
    if after and after.current == step.enabled:
        return
    if after and after.pending == step.enabled and card.mode_change_needs_reset():
        return
    if status:
        raise driver_error(status, "nvmlDeviceSetMigMode")
    raise otherwise(
        f"MIG mode was to become {_word(step.enabled)} and the driver reported success, but it is "
        f"{_word(after.current) if after else 'not there'}"
    )


def _insist_on_idle_instances(change: Change) -> None:
    """Switching MIG off takes along every instance there is."""
    gpu = with_users(read_gpu(change.card), change.readings)
    for instance in gpu.instances:
        for device in instance.compute:
            insist_on_idle(device.usage, f"{device.profile} at {instance.placement}")


def _mode_after(card: Card) -> MigMode | None:
    try:
        return card.mode()
    except DriverError as error:
        if error.code not in {NOT_FOUND, INVALID_ARGUMENT}:
            raise
    card.give_up_handle()  # the change has made it stale
    return card.mode()


def _word(enabled: bool) -> str:
    return "enabled" if enabled else "disabled"
