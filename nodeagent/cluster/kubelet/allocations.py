"""What the kubelet has allocated, and what the ids of those devices mean. Pure, without gRPC.

Resources are renamed and split at will (time slicing, MPS, other plugins), so only the device id
identifies a device, never the resource's name.
"""

import re
from typing import Final

from nodeagent.claims.names import NVIDIA_DRIVER, WHOLE_GPU
from nodeagent.plan.users import PodName
from nodeagent.structs import Struct

_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_DEVICE: Final = re.compile(rf"(?:GPU|MIG)-{_UUID}(?![0-9a-f])", re.ASCII | re.IGNORECASE)
_DEVICE_FILE: Final = re.compile(r"nvidia(\d{1,9})(?:/gi(\d{1,9}))?(?:/vgpu\d+)?", re.ASCII)
_REPLICA: Final = "::"

_DRA_GPU: Final = re.compile(r"gpu-(\d{1,9})(?![0-9a-z])", re.ASCII)
# Static MIG: gpu-N-mig-ID-START-SIZE with the profile's id. Otherwise: gpu-N-mig-NAME-ID-START with
# its name and id.
_DRA_STATIC_MIG: Final = re.compile(r"gpu-(\d{1,9})-mig-\d+-(\d{1,9})-\d+", re.ASCII)
_DRA_NAMED_MIG: Final = re.compile(r"gpu-(\d{1,9})-mig-(?=.*[a-z]).*-\d{1,9}-(\d{1,9})", re.ASCII)
_OWN_MIG: Final = re.compile(r"mig-.+-(\d{1,9})", re.ASCII)
_DRA_PASSED_THROUGH: Final = re.compile(r"gpu-vfio-\d+", re.ASCII)


class ByUuid(Struct, frozen=True):
    """The device of this UUID, in small letters; it may be none of this node's GPUs."""

    uuid: str


class ByFile(Struct, frozen=True):
    """The GPU whose file is /dev/nvidiaN, or one of its GPU instances."""

    minor: int
    gpu_instance: int | None = None


class ByPlace(Struct, frozen=True):
    """The MIG device that has memory slice `start` of the GPU whose file is /dev/nvidiaN."""

    minor: int
    start: int


class Anywhere(Struct, frozen=True):
    """Some device of this node; its name does not identify it."""

    name: str


class ByClaim(Struct, frozen=True):
    """A device that a claim (namespace and name) has of this agent's own driver: the MIG device at
    memory slice `start` of the GPU with this UUID, in small letters, or, if `start` is None, the
    GPU as a whole or a share of it.
    """

    gpu: str
    start: int | None
    claim: tuple[str, str]


DeviceId = ByUuid | ByFile | ByPlace | ByClaim | Anywhere


class Holding(Struct, frozen=True):
    """A device that a container holds, running or about to start.

    `resource` is the device plugin's; empty for a device of a resource claim (DRA).
    """

    pod: PodName
    container: str
    device: DeviceId
    resource: str = ""


def read_device_id(text: str) -> DeviceId:
    """What a device plugin's id means.

    Known are `GPU-...` and `MIG-...` (NVIDIA's plugin), also as replicas (`GPU-...::3` of
    time slicing and MPS, `GPU-...::10::0` of nos' plugin, `GPU-...-3` and others with something
    behind), and GKE's `nvidia0`, `nvidia0/gi1`, `nvidia0/gi1/vgpu0`. Anything else is taken for a
    UUID and so for none of this node's GPUs: every plugin on the node has ids.
    """
    if device := _DEVICE.match(text):
        return ByUuid(device[0].lower())
    if file := _DEVICE_FILE.fullmatch(text):
        return ByFile(int(file[1]), int(file[2]) if file[2] else None)
    return ByUuid(text.partition(_REPLICA)[0].lower())


def read_claimed_device(driver: str, device: str) -> DeviceId | None:
    """What a device of a resource claim means; None when it is no GPU that NVML could list.

    Names are those of NVIDIA's DRA driver: `gpu-N` with N of /dev/nvidiaN,
    `gpu-N-mig-ID-START-SIZE`, `gpu-N-mig-1g10gb-ID-START`. Any other name that begins with
    `gpu-N` counts as that GPU as a whole.
    """
    if driver != NVIDIA_DRIVER or _DRA_PASSED_THROUGH.fullmatch(device):
        return None  # a GPU that is passed through to a VM is bound to another driver
    for form in (_DRA_STATIC_MIG, _DRA_NAMED_MIG):
        if mig := form.fullmatch(device):
            return ByPlace(int(mig[1]), int(mig[2]))
    if gpu := _DRA_GPU.match(device):
        return ByFile(int(gpu[1]))
    return Anywhere(device)


def read_own_device(claim: tuple[str, str], pool: str, device: str) -> DeviceId:
    """What a device means that a claim (namespace and name) has of this agent's own driver."""
    gpu = pool.rpartition("/")[2]
    if device == WHOLE_GPU:
        return ByClaim(gpu, None, claim)
    mig = _OWN_MIG.fullmatch(device)
    return ByClaim(gpu, int(mig[1]), claim) if mig else Anywhere(device)
