"""Tracks which GPU instances a GPU has, and which of them are still the same."""

from collections import Counter
from collections.abc import Collection

from nodeagent.errors import DriverError
from nodeagent.gpu import nvml
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.nvml import Device, InstanceInfo
from nodeagent.gpu.nvml_errors import NOT_KNOWN
from nodeagent.metrics.samples import GpuIdentity, Slice, Subject
from nodeagent.structs import Struct, field
from nodeagent.telemetry.gpm import FreeSamples, GpmSampler
from nodeagent.telemetry.nvml_reader import LastingAnswers

_ATTEMPTS = 3


class SampledInstance(Struct):
    """A GPU instance, read through the MIG device of one of its compute instances."""

    info: InstanceInfo
    device: Device
    subject: Subject
    gpm: GpmSampler
    lasting: LastingAnswers = field(default_factory=LastingAnswers)


class InstanceTracker:
    """The instances of one GPU; `mig`: whether MIG is on, None where the GPU has no MIG."""

    def __init__(self) -> None:
        self.mig: bool | None = None
        self.instances: dict[int, SampledInstance] = {}
        self._generations: Counter[int] = Counter()

    def read(
        self,
        gpu: GpuDevice,
        identity: GpuIdentity,
        samples: FreeSamples,
        gone: Collection[int] = (),
    ) -> bool:
        """Read the instances that exist now; True if they or the mode changed. Raises DriverError.

        An instance is the same as before if it has the same id and placement and is not among
        those known to be `gone`.
        """
        before = (self.mig, tuple(self.instances.values()))
        mode = gpu.mode()
        found = {}
        if mode is not None and mode.current:
            gpu.profiles.learn(mode)
            found = _instances(gpu)
        instances: dict[int, SampledInstance] = {}
        for number, (device, info) in sorted(found.items()):
            instance = self.instances.get(number)
            if instance is None or instance.info != info or number in gone:
                name = _profile_name(gpu, device, info)
                subject = Subject(Slice(identity, name, number, self._generations[number]))
                self._generations[number] += 1
                instance = SampledInstance(info, device, subject, GpmSampler(samples, number))
            instance.device = device
            instances[number] = instance
        for number, instance in self.instances.items():
            if instances.get(number) is not instance:
                instance.gpm.end()
        self.mig, self.instances = None if mode is None else mode.current, instances
        return before != (self.mig, tuple(instances.values()))

    def forget(self) -> None:
        """Drop all handles, which a restart of NVML has made invalid. Instances that are found
        again with the same id and place count as the same.
        """
        self.instances, self.mig = {}, None
        self._generations.clear()


def _instances(gpu: GpuDevice, attempts: int = _ATTEMPTS) -> dict[int, tuple[Device, InstanceInfo]]:
    """One MIG device of each GPU instance: compute instances share the memory of theirs."""
    found: dict[int, tuple[Device, InstanceInfo]] = {}
    try:
        for device in gpu.mig_devices():
            number = nvml.gpu_instance_id(device)
            if number not in found:
                instance = nvml.gpu_instance_by_id(gpu.handle, number)
                found[number] = (device, nvml.gpu_instance_info(instance))
    except DriverError as error:
        if attempts == 1 or error.code not in NOT_KNOWN:  # as when the layout changes meanwhile
            raise
        return _instances(gpu, attempts - 1)
    return found


def _profile_name(gpu: GpuDevice, device: Device, info: InstanceInfo) -> str:
    """The name in the profile table, else `3g.40gb` from a device name that ends `1c.3g.40gb`."""
    profile = gpu.profile(info.profile_id)
    if profile is not None:
        return profile.name
    name = nvml.name(device).rpartition("MIG ")[2].split()[0]
    return name.rpartition("c.")[2]
