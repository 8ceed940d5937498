"""Creates instances, in the GPU's worker thread, and takes back what does not become as asked.

Where they lie is read back with the rest of the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.errors import DriverError
from nodeagent.gpu.nvml_errors import about
from nodeagent.gpu.nvml_types import GpuInstanceHandle
from nodeagent.gpu.steps.change import Change, find_instance, otherwise
from nodeagent.gpu.steps.destruction import destroy_emptied
from nodeagent.plan.observed import ComputeInstanceProfile, GpuInstanceProfile
from nodeagent.plan.steps import CreateComputeInstance, CreateGpuInstance


def create_gpu_instance(change: Change, step: CreateGpuInstance) -> None:
    """Create a GPU instance at its placement and the compute instances in it, largest first.

    When any of it fails, what this step made is taken away again before the error is raised.
    """
    card = change.card
    profile = card.profile(step.profile_id)
    if profile is None or profile.name != step.profile:
        raise otherwise(f"the card has no profile {step.profile} with id {step.profile_id}")
    change.insist_on_time(f"creating {step.profile} at {step.placement}")
    instance = card.nvml.create_gpu_instance(card.handle, step.profile_id, step.placement)
    try:
        for slices in step.compute:
            _create_compute(change, instance, profile, slices)
    except DriverError as error:
        raise _taken_back(change, instance, profile, error) from error


def create_compute_instance(change: Change, step: CreateComputeInstance) -> None:
    """Add a compute instance to a GPU instance that is there."""
    instance, profile = find_instance(change.card, step.instance, step.profile, step.placement)
    change.insist_on_time(f"creating {step.profile}")
    _create_compute(change, instance, profile, step.slices)


def _create_compute(
    change: Change, instance: GpuInstanceHandle, profile: GpuInstanceProfile, slices: int
) -> None:
    """Create one compute instance. One with all slices of its GPU instance is read back with the
    whole GPU. A part, of which there are several kinds, is checked here and destroyed if wrong.
    """
    card, nvml = change.card, change.card.nvml
    if slices == profile.slices:
        wanted = compute_profile_for(profile, card.learn_whole(profile, instance), slices)
        nvml.create_compute_instance(instance, wanted.id)
        return
    wanted = compute_profile_for(profile, card.learn_compute(profile, instance), slices)
    compute = nvml.create_compute_instance(instance, wanted.id)
    info = change.read_back(lambda: nvml.compute_instance_info(compute))
    if info.profile_id != wanted.id:
        nvml.destroy_compute_instance(compute)
        raise otherwise(
            f"a compute instance of profile {wanted.id} was asked for in {profile.name}, but the "
            f"driver made one of profile {info.profile_id}"
        )


def compute_profile_for(
    profile: GpuInstanceProfile, offered: Sequence[ComputeInstanceProfile], slices: int
) -> ComputeInstanceProfile:
    """The compute profile that `slices` of a GPU instance mean.

    Several may have the same number of slices: in a 1g of double memory on Hopper, one gives all
    of its multiprocessors and one only those of a plain 1g. Who asks for all slices gets all
    multiprocessors; who asks for a part gets the one of which the most fit.
    """
    fitting = [compute for compute in offered if compute.slices == slices]
    if not fitting:
        sizes = ", ".join(str(size) for size in sorted({c.slices for c in offered})) or "none"
        raise otherwise(
            f"a compute instance of {slices} slices was asked for in {profile.name}, which offers "
            f"{sizes}"
        )
    if slices == profile.slices:
        return max(fitting, key=lambda compute: (compute.multiprocessors, -compute.id))
    return max(fitting, key=lambda compute: (compute.max_count, -compute.id))


def _taken_back(
    change: Change, instance: GpuInstanceHandle, profile: GpuInstanceProfile, error: DriverError
) -> DriverError:
    """Remove a GPU instance made just now, with all in it; the error to raise then."""
    nvml = change.card.nvml
    room = change.card.room_for(profile)
    try:
        for compute in change.card.compute_profiles(profile.id):
            for handle in nvml.compute_instances(instance, compute.id, room):
                nvml.destroy_compute_instance(handle)
        destroy_emptied(change, instance)
    except DriverError as left:
        return about(f"{profile.name} is left half-made, because also {left.message}", error)
    return error
