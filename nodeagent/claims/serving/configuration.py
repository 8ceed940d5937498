"""How a claim's devices shall be shared: the opaque parameters of its classes and its own. Pure.

The words are those of a plan's `mps` and `timeSlice`, read by the plan's rules. Claims are written
by tenants, classes by administrators: whom MPS runs as, what becomes of clients beyond their
limits, and whether shares may add up to more than there is are in classes alone.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NoReturn

from nodeagent.claims.model import Configuration
from nodeagent.documents.findings import DocumentPath, Findings
from nodeagent.documents.grammar import (
    Given,
    Key,
    Place,
    Rule,
    flag,
    form,
    read_with,
    scalar,
    then,
    whole,
    word,
)
from nodeagent.documents.mps import MEMORY, MPS
from nodeagent.documents.plan import TIME_SLICE, refuse_two_ways
from nodeagent.plan.desired import MpsEntry, ShareEntry, Shares
from nodeagent.plan.shares import ANY_USER, TimeSlice
from nodeagent.structs import replace

API_VERSION: Final = "gpu.nodeagent.io/v1"
KIND: Final = "DeviceConfig"
NVIDIA_API_VERSION: Final = "resource.nvidia.com/v1beta1"
LARGEST: Final = 10 * 1024  # bytes of parameters; the API server's own limit

_CLIENTS = "clients"  # the name of the one share of all clients
_ADMINISTRATORS = ("user", "enforce", "oversubscribe")


class Source(StrEnum):
    """Who wrote a configuration: as the allocation has it."""

    CLASS = "FromClass"
    CLAIM = "FromClaim"


def read_configuration(
    parameters: object, source: Source, path: DocumentPath, *, nvidia: bool
) -> Configuration | None:
    """What the parameters at `path` of an allocation ask for; None: nothing is shared.

    With `nvidia` the GpuConfig and MigDeviceConfig of NVIDIA's driver are read too. Raises
    DocumentError with every fault.
    """
    kind = parameters.get("kind") if isinstance(parameters, dict) else None
    rule: Rule[Configuration | None] = _OURS[source]
    if kind in ("GpuConfig", "MigDeviceConfig"):
        rule = _NVIDIAS[source, kind] if nvidia else _NOT_HONOURED
    return read_with(rule, parameters, Findings(), path)


def within_class(own: Configuration | None, of_class: Configuration | None) -> Configuration | None:
    """A claim's own configuration, with what its class alone may say of MPS."""
    if not isinstance(own, MpsEntry) or not isinstance(of_class, MpsEntry):
        return own
    return replace(
        own,
        user=of_class.user,
        enforce=of_class.enforce,
        oversubscribe=of_class.oversubscribe,
    )


# --- the agent's own ------------------------------------------------------------------------------


def _class_mps(place: Place, mps: MpsEntry) -> MpsEntry:
    if isinstance(mps.clients, Shares) and len(mps.clients.entries) > 1:
        raise place.refuse(
            f"found {len(mps.clients.entries)} shares, but all containers of a claim have the "
            "same limits",
            remedy="keep one of them, and make a claim for each of the others",
            below=("shares",),
        )
    return mps


def _claim_mps(place: Place, mps: MpsEntry) -> MpsEntry:
    for key in _ADMINISTRATORS:
        if key in place.value:
            raise place.refuse(
                f"{key} is allowed in a DeviceClass only, because tenants write claims",
                remedy=f"leave {key} out, or use a class that has it",
                below=(key,),
                of_key=True,
            )
    return _class_mps(place, mps)


def _device_config(place: Place, given: Given) -> Configuration:
    refuse_two_ways(place, given)
    if given["mps"]:
        mps: MpsEntry = given["mps"]
        return mps
    if given["timeSlice"]:
        return TimeSlice(given["timeSlice"])
    raise place.refuse("the configuration says nothing", remedy="give it mps or timeSlice")


def _ours(mps: Rule[MpsEntry]) -> Rule[Configuration | None]:
    return form(
        Key("apiVersion", word(API_VERSION), API_VERSION, required=True),
        Key("kind", word(KIND), KIND, required=True),
        Key("mps", mps, "MPS on the device, as in a plan"),
        Key("timeSlice", TIME_SLICE, "how long a process runs before the next one's turn"),
        build=_device_config,
    )


_OURS = {Source.CLASS: _ours(then(MPS, _class_mps)), Source.CLAIM: _ours(then(MPS, _claim_mps))}


# --- NVIDIA's (api/nvidia.com/resource/v1beta1/sharing.go of its driver) --------------------------


def _nvidia_mps(place: Place, given: Given) -> MpsEntry:
    threads, path = given["defaultActiveThreadPercentage"], place.path_below()
    limits = ShareEntry(
        name=_CLIENTS,
        count=None,
        memory=given["defaultPinnedDeviceMemoryLimit"],
        threads=None if threads is None else float(threads),
        path=path,
    )
    clients = Shares((limits,), path)
    return MpsEntry(path, clients, user=ANY_USER if given["multiUser"] else None)


def _nvidia_claim_mps(place: Place, mps: MpsEntry) -> MpsEntry:
    if mps.user is not None:
        raise place.refuse(
            "multiUser runs the MPS server as root, and tenants write claims",
            remedy="leave it out, or use a DeviceClass that has it",
            below=("multiUser",),
            of_key=True,
        )
    return mps


_NVIDIA_MPS = form(
    Key("defaultActiveThreadPercentage", whole(1, 100), "share of the threads, in percent"),
    Key("defaultPinnedDeviceMemoryLimit", MEMORY, "device memory, a quantity such as 8Gi"),
    Key(
        "defaultPerDevicePinnedMemoryLimit",
        scalar(
            lambda value: not value,
            "none: all devices of a request have the same limit",
            {},
            lambda _: "write defaultPinnedDeviceMemoryLimit",
        ),
        "limits by device",
    ),
    Key("multiUser", flag(), "whether clients of every user are served", default=False),
    build=_nvidia_mps,
)
_INTERVAL = form(
    Key("interval", word("Default", "Short", "Medium", "Long"), "the interval", default="Default"),
    build=lambda _, given: TimeSlice(given["interval"].lower()),
)


def _nvidia_sharing(place: Place, given: Given) -> Configuration | None:
    """On a MIG device time slicing is what it has anyway: there is no interval to set."""
    is_mps, of_gpu = given["strategy"] == "MPS", "timeSlicingConfig" in given
    other = "timeSlicingConfig" if is_mps else "mpsConfig"
    if given.get(other) is not None:
        raise place.refuse(
            f"found {other} beside strategy {given['strategy']}",
            remedy="drop one of them",
            below=(other,),
            of_key=True,
        )
    if is_mps:
        path = place.path_below()
        share = ShareEntry(_CLIENTS, None, None, None, path)
        unlimited = MpsEntry(path, Shares((share,), path))
        mps: MpsEntry = given["mpsConfig"] or unlimited
        return mps
    interval: TimeSlice | None = given.get("timeSlicingConfig")
    return (interval or TimeSlice.DEFAULT) if of_gpu else None


def _nvidias(kind: str, mps: Rule[MpsEntry]) -> Rule[Configuration | None]:
    interval = (Key("timeSlicingConfig", _INTERVAL, "the time slice"),)
    sharing = form(
        Key("strategy", word("TimeSlicing", "MPS"), "TimeSlicing or MPS", required=True),
        *(interval if kind == "GpuConfig" else ()),
        Key("mpsConfig", mps, "limits of MPS clients"),
        build=_nvidia_sharing,
    )
    return form(
        Key("apiVersion", word(NVIDIA_API_VERSION), NVIDIA_API_VERSION, required=True),
        Key("kind", word(kind), kind, required=True),
        Key("sharing", sharing, "how the device is shared"),
        build=lambda _, given: given["sharing"],
    )


_NVIDIAS = {
    (source, kind): _nvidias(kind, mps)
    for source, mps in (
        (Source.CLASS, _NVIDIA_MPS),
        (Source.CLAIM, then(_NVIDIA_MPS, _nvidia_claim_mps)),
    )
    for kind in ("GpuConfig", "MigDeviceConfig")
}


def _not_honoured(place: Place) -> NoReturn:
    raise place.refuse(
        f"found {place.value['kind']} of NVIDIA's driver, which this node does not honour",
        remedy=f"write {API_VERSION} {KIND} with mps or timeSlice",
        below=("kind",),
    )


_NOT_HONOURED: Rule[Configuration | None] = Rule(_not_honoured, {})
