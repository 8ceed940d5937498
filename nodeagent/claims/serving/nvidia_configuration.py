"""The configurations of NVIDIA's driver for claims, read as what the agent's own would say. Pure.

Keys and meaning are those of that driver (api/nvidia.com/resource/v1beta1 and prepareDevices of
cmd/gpu-kubelet-plugin/device_state.go): each kind is for devices of one kind, and passes over
others unless it names their request. As in the agent's own, classes alone say whom MPS runs as.
"""

from typing import Final

from nodeagent.claims.model import Configuration
from nodeagent.claims.names import DRIVER, WHOLE_GPU
from nodeagent.claims.serving.claim_object import Source
from nodeagent.documents.findings import DocumentPath, path_text
from nodeagent.documents.grammar import (
    DocumentValue,
    Given,
    Key,
    Rule,
    flag,
    form,
    map_of,
    then,
    whole,
    word,
)
from nodeagent.documents.mps import MEMORY
from nodeagent.errors import DocumentError
from nodeagent.plan.desired import MpsEntry, ShareEntry, Shares
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import ANY_USER, TimeSlice
from nodeagent.structs import Struct
from nodeagent.text import quote

NVIDIA_API_VERSION: Final = "resource.nvidia.com/v1beta1"
GPU_CONFIG, MIG_CONFIG = "GpuConfig", "MigDeviceConfig"
NVIDIA_KINDS: Final = (GPU_CONFIG, MIG_CONFIG)

_PER_DEVICE = "defaultPerDevicePinnedMemoryLimit"


class NvidiaConfiguration(Struct, frozen=True):
    """What the one at `path` says; `sharing` None: the device is shared as it is anyway.

    `exception` is the device that has other limits than `sharing`, as it is named there, and these.
    """

    kind: str
    path: DocumentPath
    sharing: Configuration | None = None
    exception: tuple[str, MpsEntry] | None = None

    def fits(self, device: str) -> bool:
        """Return whether it is for devices like the one with that name; a kind that is not known
        may be for any.
        """
        return self.kind not in NVIDIA_KINDS or self.kind == _kind_for(device)

    def of_device(self, device: str, gpu: str, *, alone: bool) -> Configuration | None:
        """What it says of a device of the GPU with the UUID `gpu`, in small letters; `alone`: and
        of no other device. Raises DocumentError.
        """
        if not self.fits(device):
            right = _kind_for(device)
            raise self.refused("kind", "kind", found=self.kind, device=device, right=right)
        if self.exception is None:
            return self.sharing
        name, limited = self.exception
        if not alone or name.lower() not in ("0", gpu if device == WHOLE_GPU else "0"):
            below = "sharing", "mpsConfig", _PER_DEVICE
            raise self.refused("otherDevice", *below, found=quote(name))
        return limited

    def refused(self, case: str, *below: str, **facts: object) -> DocumentError:
        """In the words of the catalogue; to be raised."""
        path = path_text((*self.path, *below))
        return DocumentError([Problem.of(Code.INVALID_VALUE, case, gpu="", path=path, **facts)])


def kind_of(parameters: object) -> str:
    """The kind of the parameters, as they were written; "" where they have none."""
    kind = parameters.get("kind") if isinstance(parameters, dict) else None
    return kind if isinstance(kind, str) else ""


def _kind_for(device: str) -> str:
    """The kind for the device with that name."""
    return GPU_CONFIG if device == WHOLE_GPU else MIG_CONFIG


# --- its keys -------------------------------------------------------------------------------------


class _Mps(Struct, frozen=True):
    """An mpsConfig: of all devices, and of the one that is an exception."""

    entry: MpsEntry
    exception: tuple[str, MpsEntry] | None = None


def _entry(path: str, memory: int | None, threads: float | None, user: str | None) -> MpsEntry:
    """The same limits for however many clients come."""
    share = ShareEntry("clients", None, memory, threads, path)
    return MpsEntry(path, Shares((share,), path), user=user)


def _mps(place: DocumentValue, given: Given) -> _Mps:
    threads = given["defaultActiveThreadPercentage"]
    more = None if threads is None else float(threads), ANY_USER if given["multiUser"] else None
    path, limits = place.path_below(), given[_PER_DEVICE]
    if len(limits) > 1:
        raise place.refused("severalDevices", found=len(limits), below=(_PER_DEVICE,))
    return _Mps(
        _entry(path, given["defaultPinnedDeviceMemoryLimit"], *more),
        next(((name, _entry(path, memory, *more)) for name, memory in limits.items()), None),
    )


def _claim_mps(place: DocumentValue, mps: _Mps) -> _Mps:
    if mps.entry.user is not None:
        raise place.refused("multiUser", below=("multiUser",), of_key=True)
    return mps


_MPS = form(
    Key("defaultActiveThreadPercentage", whole(1, 100), "share of the threads, in percent"),
    Key("defaultPinnedDeviceMemoryLimit", MEMORY, "device memory, a quantity such as 8Gi"),
    Key(_PER_DEVICE, map_of(MEMORY), "device memory by the device's index or UUID", default={}),
    Key("multiUser", flag(), "whether clients of every user are served", default=False),
    build=_mps,
)
_INTERVAL = form(
    Key("interval", word("Default", "Short", "Medium", "Long"), "the interval", default="Default"),
    build=lambda _, given: TimeSlice(given["interval"].lower()),
)


def _sharing(place: DocumentValue, given: Given) -> _Mps | TimeSlice | None:
    """On a MIG device time slicing is what it has anyway: there is no interval to set."""
    is_mps, of_gpu = given["strategy"] == "MPS", "timeSlicingConfig" in given
    other = "timeSlicingConfig" if is_mps else "mpsConfig"
    if given.get(other) is not None:
        raise place.refused(
            "besideStrategy", key=other, strategy=given["strategy"], below=(other,), of_key=True
        )
    if is_mps:
        mps: _Mps | None = given["mpsConfig"]
        return mps or _Mps(_entry(place.path_below(), None, None, None))
    interval: TimeSlice | None = given.get("timeSlicingConfig")
    return (interval or TimeSlice.DEFAULT) if of_gpu else None


def _configuration(place: DocumentValue, given: Given) -> NvidiaConfiguration:
    sharing: _Mps | TimeSlice | None = given["sharing"]
    if isinstance(sharing, _Mps):
        return NvidiaConfiguration(given["kind"], place.path, sharing.entry, sharing.exception)
    return NvidiaConfiguration(given["kind"], place.path, sharing)


def _of_kind(kind: str, mps: Rule[_Mps]) -> Rule[NvidiaConfiguration]:
    interval = (Key("timeSlicingConfig", _INTERVAL, "the time slice"),)
    sharing = form(
        Key("strategy", word("TimeSlicing", "MPS"), "TimeSlicing or MPS", required=True),
        *(interval if kind == GPU_CONFIG else ()),
        Key("mpsConfig", mps, "limits of MPS clients"),
        build=_sharing,
    )
    return form(
        Key("apiVersion", word(NVIDIA_API_VERSION), NVIDIA_API_VERSION, required=True),
        Key("kind", word(kind), kind, required=True),
        Key("sharing", sharing, "how the device is shared"),
        build=_configuration,
    )


def _nvidias(mps: Rule[_Mps]) -> Rule[NvidiaConfiguration]:
    rules = {kind: _of_kind(kind, mps) for kind in NVIDIA_KINDS}

    def read(place: DocumentValue) -> NvidiaConfiguration:
        kind = kind_of(place.value)
        if kind not in rules:
            found = quote(kind) if kind else "nothing"
            raise place.refused("nvidiaKind", found=found, driver=DRIVER, below=("kind",))
        return rules[kind].read(place)

    return Rule(read, {})


NVIDIAS: Final = {Source.CLASS: _nvidias(_MPS), Source.CLAIM: _nvidias(then(_MPS, _claim_mps))}
