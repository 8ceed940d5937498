"""Tracks which GPU instances a GPU has, and which of them are still the same."""

from __future__ import annotations

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
    standing: LastingAnswers = field(default_factory=LastingAnswers)


class InstanceTracker:
    """The instances of one GPU. `mig` is the mode, None where the GPU has none."""

    def __init__(self) -> None:
        self.mig: bool | None = None
        self.parts: dict[int, SampledInstance] = {}
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
        before = (self.mig, tuple(self.parts.values()))
        mode = gpu.mode()
        found = {}
        if mode is not None and mode.current:
            gpu.profiles.learn(mode)
            found = _instances(gpu)
        parts: dict[int, SampledInstance] = {}
        for number, (device, info) in sorted(found.items()):
            part = self.parts.get(number)
            if part is None or part.info != info or number in gone:
                name = _profile_name(gpu, device, info)
                entity = Slice(identity, name, number, self._generations[number])
                self._generations[number] += 1
                part = SampledInstance(info, device, Subject(entity), GpmSampler(samples, number))
            part.device = device
            parts[number] = part
        for number, part in self.parts.items():
            if parts.get(number) is not part:
                part.gpm.end()
        self.mig, self.parts = None if mode is None else mode.current, parts
        return before != (self.mig, tuple(parts.values()))

    def forget(self) -> None:
        """Drop all handles, which a restart of NVML has made invalid. The instances may be the
        same, and count as such.
        """
        self.parts, self.mig = {}, None
        self._generations.clear()


def _instances(gpu: GpuDevice, attempts: int = _ATTEMPTS) -> dict[int, tuple[Device, InstanceInfo]]:
    """A MIG device of each GPU instance, since its compute instances share its memory."""
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
    """The name in the profile table, else the one in the MIG device's name."""
    profile = gpu.profile(info.profile_id)
    if profile is not None:
        return profile.name
    name = nvml.name(device).rpartition("MIG ")[2].split()[0]
    return name.rpartition("c.")[2]
