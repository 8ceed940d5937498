"""What every change to a GPU has in common: its bounds, and finding the instance that is meant."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from nodeagent import errors
from nodeagent.catalogue import filled, section
from nodeagent.gpu import nvml
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.nvml import Device, GpuInstanceHandle, InstanceInfo
from nodeagent.gpu.nvml_errors import NOT_FOUND, NOT_KNOWN
from nodeagent.gpu.users import UsageReading
from nodeagent.plan.names import ProfileName
from nodeagent.plan.observed import GpuInstanceProfile, Placement
from nodeagent.plan.remedies import in_use_remedy
from nodeagent.plan.users import Usage
from nodeagent.structs import Struct

_REREADS = 2  # of a change, before the failure to read it back fails the step
_PAUSE = 0.05  # seconds

Answer = TypeVar("Answer")


class StaleReadings(Exception):
    """The driver was slow, and the readings are too old to decide; nothing was changed yet.

    `looked`: the attempt got as far as looking for processes, which is what takes long.
    """

    def __init__(self, *, looked: bool) -> None:
        super().__init__()
        self.looked = looked


class Change(Struct, frozen=True):
    """A step about to be applied: to which GPU, and until when, in monotonic seconds.

    `readings` tell the users that NVML does not know, and `are_stale` when they are too old.
    `looked`: an earlier attempt has just looked for processes, which is not repeated: from those
    that came since, the driver itself refuses to take a device away.
    """

    gpu: GpuDevice
    until: float
    readings: Sequence[UsageReading] = ()
    are_stale: Callable[[], bool] = bool
    looked: bool = False

    def require_time(self, what: str) -> None:
        """Raise DeadlineExceeded if it is too late for what cannot be undone: readings are old."""
        if time.monotonic() > self.until:
            raise errors.DeadlineExceeded.of("givenUp", what=what)

    def require_fresh(self, *, looked: bool = True) -> None:
        """Call before the readings decide; raises StaleReadings."""
        if self.readings and self.are_stale():
            raise StaleReadings(looked=looked)

    def read_back(self, ask: Callable[[], Answer]) -> Answer:
        """Read the result of a change; a read that fails in passing is repeated."""
        for _ in range(_REREADS):
            try:
                return ask()
            except (errors.DriverUnavailable, errors.GpuLost, errors.DeadlineExceeded):
                raise
            except errors.DriverError:
                if not self.sleep(_PAUSE):
                    raise
        return ask()

    def sleep(self, seconds: float) -> bool:
        """Wait if the deadline allows for it; whether it did."""
        if time.monotonic() + seconds > self.until:
            return False
        time.sleep(seconds)
        return True


def find_instance(
    gpu: GpuDevice, instance: int, device: str, placement: Placement
) -> tuple[GpuInstanceHandle, GpuInstanceProfile]:
    """The GPU instance of that id, which must be the one that is meant, since ids are re-used.

    `device` is the name of it, or of a MIG device in it.
    """
    name = str(ProfileName.parse(device).gpu_instance)
    wanted = f"{name} at {placement}"
    try:
        handle, info = _instance(gpu, instance)
    except errors.DriverError as error:
        if error.code != NOT_FOUND:
            raise
        raise other_than_planned("instanceGone", instance=instance, wanted=wanted) from error
    profile = gpu.profile(info.profile_id)
    if profile is None or profile.name != name or info.placement != placement:
        now = profile.name if profile else f"profile {info.profile_id}"
        found = f"{now} at {info.placement}"
        raise other_than_planned("otherInstance", instance=instance, wanted=wanted, found=found)
    return handle, profile


def _instance(gpu: GpuDevice, instance: int) -> tuple[GpuInstanceHandle, InstanceInfo]:
    """The instance as it was read a moment ago, else as the driver answers now."""
    if known := gpu.recent.instance(instance):
        return known.handle, known.info
    handle = nvml.gpu_instance_by_id(gpu.handle, instance)
    return handle, nvml.gpu_instance_info(handle)


def mig_device(uuid: str) -> Device:
    """The MIG device of that UUID, which must still be there."""
    try:
        return nvml.device_by_uuid(uuid)
    except errors.DriverError as error:
        if error.code in NOT_KNOWN:
            raise other_than_planned("deviceGone", device=uuid) from error
        raise


def other_than_planned(case: str, **facts: object) -> errors.DriverError:
    """The error of a device that is not what was planned for, or has not become it."""
    found = filled(section("unplanned")[case], facts)
    return errors.DriverError.of("otherThanPlanned", found=found)


def cannot_restore(what: str, device: str, why: str = "") -> errors.NodeagentError:
    """A setting is not changed, because its original could not be restored."""
    return errors.NodeagentError.of("notRestorable", what=what, device=device, why=why)


def in_use(why: str, *usages: Usage) -> errors.GpuInUse:
    """A step is refused because devices have these users, or may have some."""
    return errors.GpuInUse(why, remedy=in_use_remedy(*usages))
