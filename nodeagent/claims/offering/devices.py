"""A device as it is published: its name, attributes, capacity, counters and taints.

Attributes and capacity have the names that NVIDIA's own driver gives them, under its domain, so
that selectors written for it match (kubernetes-sigs/dra-driver-nvidia-gpu, deviceinfo.go and
mig.go), and the standard ones under `resource.kubernetes.io/`. What is not known is left out.
"""

import re
from collections.abc import Mapping

from nodeagent.claims.capacity import CLIENTS, MEMORY, THREADS, Consumed, RequestPolicy, policies
from nodeagent.claims.names import WHOLE_GPU, DevicePlace
from nodeagent.plan.desired import SharedBy
from nodeagent.plan.observed import Gpu
from nodeagent.structs import Struct, field, replace

_NVIDIA = "gpu.nvidia.com/"
UUID = _NVIDIA + "uuid"
SHARING = "sharing"  # what holds claims apart that have the device together
_STANDARD = "resource.kubernetes.io/"
_WITHOUT_DOMAIN = frozenset({SHARING, THREADS, CLIENTS})
MAX_VALUE_LENGTH = 64  # bytes of a string or version


class Version(Struct, frozen=True):
    """An attribute that is compared as a version; `text` is semantic versioning's form."""

    text: str


AttributeValue = bool | int | str | Version


class Taint(Struct, frozen=True):
    """Nothing new is scheduled on it; `added` in seconds since 1970, in UTC."""

    key: str
    added: int


class OfferedDevice(Struct, frozen=True):
    """`consumes` has the amounts by counter, none where the device takes from none.

    `capacity` in bytes for memory, in percent for threads, else in pieces. Where it has `policies`,
    claims may have it together, and consume its capacities by these.
    """

    name: str
    attributes: Mapping[str, AttributeValue]
    capacity: Mapping[str, int]
    consumes: Mapping[str, int] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    policies: Mapping[str, RequestPolicy] = field(default_factory=dict)


class GpuFacts(Struct, frozen=True):
    """What attributes have beside what is observed of a GPU; empty where it is not known.

    Versions as the driver writes them (`580.65.06`, `13.0`); `pcie_root` as in `pci0000:01`.
    """

    driver_version: str = ""
    cuda_driver_version: str = ""
    brand: str = ""
    pcie_root: str = ""
    addressing_mode: str = ""


def written_name(name: str, driver: str) -> str:
    """The name of an attribute or capacity in slices of that driver. Its own domain is left out:
    selectors find it either way, requests for capacities as it is written alone.
    """
    return name.removeprefix(f"{driver}/")


def read_name(name: str, driver: str) -> str:
    """The name that `written_name` was given."""
    return name if "/" in name or name in _WITHOUT_DOMAIN else f"{driver}/{name}"


def whole_gpu(gpu: Gpu, facts: GpuFacts, consumes: Mapping[str, int]) -> OfferedDevice:
    """The GPU as a whole."""
    attributes = {_NVIDIA + "type": "gpu", UUID: gpu.uuid, **_common(gpu, facts)}
    capacity = {MEMORY: gpu.memory} if gpu.memory else {}
    return OfferedDevice(WHOLE_GPU, attributes, capacity, consumes)


def shared_device(device: OfferedDevice, all_of_it: Consumed, shared_by: SharedBy) -> OfferedDevice:
    """The device as claims may have it together in that way; as it is where they cannot."""
    found = policies(all_of_it.memory, shared_by)
    if not found:
        return device
    amounts = {THREADS: all_of_it.threads, CLIENTS: all_of_it.clients}
    # Of a capacity without a policy the first claim would consume all; a step is no larger than it.
    engines = {name: RequestPolicy(0, 0, 1) for name, amount in device.capacity.items() if amount}
    return replace(
        device,
        attributes={**device.attributes, SHARING: "timeSlice" if shared_by == "time" else "mps"},
        capacity={**device.capacity, **{n: amounts[n] for n in found if n in amounts}},
        policies=engines | dict(found),
    )


def mig_device(
    gpu: Gpu, facts: GpuFacts, place: DevicePlace, consumes: Mapping[str, int]
) -> OfferedDevice:
    """One MIG device with all of its GPU instance, whether it is there now or not."""
    profile = place.profile
    attributes = {
        _NVIDIA + "type": "mig",
        _NVIDIA + "parentUUID": gpu.uuid,
        _NVIDIA + "profile": profile.name,
        **_common(gpu, facts),
    }
    capacity = {
        "memory": profile.memory,
        "multiprocessors": profile.multiprocessors,
        "copyEngines": profile.engines.copy,
        "decoders": profile.engines.decoder,
        "encoders": profile.engines.encoder,
        "jpegEngines": profile.engines.jpeg,
        "ofaEngines": profile.engines.ofa,
    }
    named = {_NVIDIA + name: amount for name, amount in capacity.items()}
    return OfferedDevice(place.name, attributes, named, consumes)


def _common(gpu: Gpu, facts: GpuFacts) -> dict[str, AttributeValue]:
    capability = ".".join(map(str, gpu.compute_capability)) if any(gpu.compute_capability) else ""
    values: dict[str, AttributeValue | None] = {
        _NVIDIA + "productName": _short(gpu.name),
        _NVIDIA + "brand": _short(facts.brand),
        _NVIDIA + "architecture": _architecture(*gpu.compute_capability),
        _NVIDIA + "cudaComputeCapability": version(capability),
        _NVIDIA + "driverVersion": version(facts.driver_version),
        _NVIDIA + "cudaDriverVersion": version(facts.cuda_driver_version),
        _NVIDIA + "addressingMode": facts.addressing_mode or None,
        _STANDARD + "pciBusID": pci_address(gpu.pci_bus_id),
        _STANDARD + "pcieRoot": _short(facts.pcie_root),
        _STANDARD + "numaNode": gpu.numa_node,
    }
    return {name: value for name, value in values.items() if value is not None}


def _short(text: str) -> str | None:
    """At most as long as an attribute may be."""
    return text.encode()[:MAX_VALUE_LENGTH].decode(errors="ignore") or None


def version(text: str) -> Version | None:
    """`580.65.06` as semantic versioning writes it, which has three numbers without zeros in
    front; None where it is no version.
    """
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9}){0,2}", text):
        return None
    numbers = [int(part) for part in text.split(".")]
    return Version(".".join(map(str, [*numbers, 0, 0][:3])))


def _architecture(major: int, minor: int) -> str | None:
    """As NVIDIA's tools name it, by compute capability."""
    match major:
        case 7:
            return "Turing" if minor >= 5 else "Volta"
        case 8:
            return "Ada Lovelace" if minor >= 9 else "Ampere"
        case 9:
            return "Hopper"
        case 10 | 11 | 12:
            return "Blackwell"
    return None


def pci_address(nvml: str) -> str | None:
    """The kernel's spelling, `0000:1a:00.0`; NVML writes the domain with eight digits."""
    match = re.fullmatch(r"([0-9a-f]{4,8})(:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", nvml.lower())
    return f"{int(match[1], 16):04x}{match[2]}" if match else None
