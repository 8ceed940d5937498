"""What a handle stands for at the moment of a call: a card, an instance, a MIG device."""

from nodeagent.simulation.boards import ComputeProfile, GpuProfile
from nodeagent.simulation.card import Card
from nodeagent.simulation.handles import Handle, Kind
from nodeagent.simulation.state import ComputeInstance, GpuInstance


class Device:
    """A whole GPU, and what instances have in common with it. `serial` is what a handle keeps."""

    kind = Kind.GPU
    serial = -1

    def __init__(self, card: Card) -> None:
        self.card = card


class GpuInstanceDevice(Device):
    """A GPU instance."""

    kind = Kind.GPU_INSTANCE

    def __init__(self, card: Card, instance: GpuInstance) -> None:
        super().__init__(card)
        self.instance = instance
        self.serial = instance.serial

    @property
    def profile(self) -> GpuProfile:
        return self.card.profile(self.instance.profile)


class ComputeInstanceDevice(GpuInstanceDevice):
    """A compute instance."""

    kind = Kind.COMPUTE_INSTANCE

    def __init__(self, card: Card, instance: GpuInstance, compute: ComputeInstance) -> None:
        super().__init__(card, instance)
        self.compute = compute
        self.serial = compute.serial

    @property
    def compute_profile(self) -> ComputeProfile:
        return self.card.compute_profile(self.instance, self.compute.profile)


class MigDevice(ComputeInstanceDevice):
    """A compute instance as a device of its own."""

    kind = Kind.MIG_DEVICE

    @property
    def uuid(self) -> str:
        return self.card.mig_uuid(self.instance, self.compute)


def locate(card: Card, handle: Handle) -> Device | None:
    """None when the instance is gone."""
    if handle.kind is Kind.GPU:
        return Device(card)
    for instance in card.state.instances:
        if handle.kind is Kind.GPU_INSTANCE and instance.serial == handle.serial:
            return GpuInstanceDevice(card, instance)
        for compute in instance.compute:
            if handle.kind is not Kind.GPU_INSTANCE and compute.serial == handle.serial:
                made = MigDevice if handle.kind is Kind.MIG_DEVICE else ComputeInstanceDevice
                return made(card, instance, compute)
    return None
