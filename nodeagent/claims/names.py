"""The names of pools and devices, both ways.

A pool is one GPU: `<node>/<gpu uuid in lower case>`. Its devices are `gpu`, which is all of it,
and one for each place of each of its profiles: `1g.10gb+me` at slice 4 is `mig-1g-10gb-me-4`, and
`2g.48gb-me` at slice 0 is `mig-2g-48gb-nome-0`. The name of a MIG device is never taken apart: what
it means is looked up among the names that the GPU's own profiles make.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from nodeagent.errors import UnknownDevice
from nodeagent.plan.mig import unlisted
from nodeagent.plan.observed import Gpu, GpuInstanceProfile, Placement
from nodeagent.structs import Struct
from nodeagent.text import listed

DRIVER: Final = "gpu.nodeagent.io"
NVIDIA_DRIVER: Final = "gpu.nvidia.com"  # which this agent's may be called, too (`dra.driver`)
WHOLE_GPU = "gpu"


class DevicePlace(Struct, frozen=True):
    """One place of one of a GPU's profiles."""

    profile: GpuInstanceProfile
    placement: Placement

    @property
    def name(self) -> str:
        """The device's."""
        return mig_device_name(self.profile.name, self.placement.start)


class Located(Struct, frozen=True):
    """What a pool and a device name mean; `part` None is the whole GPU."""

    gpu: Gpu
    part: DevicePlace | None


def is_own(driver: str, pool: str) -> bool:
    """Return whether such devices are of this agent, or of an earlier one under its other name.
    NVIDIA's driver has one pool, called as the Node is, which no slash is in.
    """
    return driver == DRIVER or (driver == NVIDIA_DRIVER and "/" in pool)


def pool_name(node: str, uuid: str) -> str:
    """The pool of the GPU with that UUID."""
    return f"{node}/{uuid.lower()}"


def mig_device_name(profile: str, start: int) -> str:
    """The device that is a GPU instance of `profile` (canonical) at memory slice `start`."""
    size, *signed = re.split(r"(?=[+-])", profile, maxsplit=1)
    words = ["mig", size]
    for attributes in signed:
        negation = "no" if attributes[0] == "-" else ""
        words += [negation + attribute for attribute in attributes[1:].split(",")]
    return "-".join((*words, str(start))).replace(".", "-").lower()


def places(gpu: Gpu) -> Mapping[str, DevicePlace]:
    """The MIG devices that the GPU can have, by name, in the order of the driver's profiles.

    Were two of them to have one name, only the first would be in it; `counters.mismatch` finds
    that.
    """
    return _places(gpu.profiles)


@lru_cache(maxsize=64)
def _places(profiles: tuple[GpuInstanceProfile, ...]) -> Mapping[str, DevicePlace]:
    found: dict[str, DevicePlace] = {}
    for profile in profiles:
        for placement in sorted(profile.placements):
            place = DevicePlace(profile, placement)
            found.setdefault(place.name, place)
    return found


def locate(pool: str, device: str, node: str, gpus: Iterable[Gpu]) -> Located:
    """Return what is meant on this `node`; raises UnknownDevice with the reason when nothing is."""
    own = list(gpus)
    gpu = next((g for g in own if g.uuid and pool_name(node, g.uuid) == pool), None)
    if gpu is None:
        owner, _, uuid = pool.partition("/")
        if owner != node or not uuid:
            raise UnknownDevice(f"pool {pool} is not one of node {node}")
        known = listed([g.uuid.lower() for g in own if g.uuid])
        raise UnknownDevice(f"this node has no GPU {uuid}", remedy=f"it has: {known or 'none'}")
    if device == WHOLE_GPU:
        return Located(gpu, None)
    part = places(gpu).get(device)
    if part is not None:
        return Located(gpu, part)
    if gpu.unlisted:
        problem = unlisted(gpu)
        raise UnknownDevice(
            f"{gpu.title} has no device {device}: {problem.message}", remedy=problem.remedy
        )
    known = listed([WHOLE_GPU, *places(gpu)], most=64)
    raise UnknownDevice(f"{gpu.title} has no device {device}", remedy=f"it has: {known}")
