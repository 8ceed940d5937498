"""The configurations of NVIDIA's driver for claims, read as what the agent's own would say. Pure.

Their keys are those of api/nvidia.com/resource/v1beta1/sharing.go of that driver.
"""

from __future__ import annotations

from typing import Final

from nodeagent.claims.model import Configuration
from nodeagent.claims.serving.claim_object import Source
from nodeagent.documents.grammar import (
    Given,
    Key,
    Place,
    Rule,
    flag,
    form,
    scalar,
    then,
    whole,
    word,
)
from nodeagent.documents.mps import MEMORY
from nodeagent.plan.desired import MpsEntry, ShareEntry, Shares
from nodeagent.plan.shares import ANY_USER, TimeSlice

NVIDIA_API_VERSION: Final = "resource.nvidia.com/v1beta1"

_CLIENTS = "clients"  # the name of the one share of all clients


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


NVIDIAS: Final = {
    (source, kind): _nvidias(kind, mps)
    for source, mps in (
        (Source.CLASS, _NVIDIA_MPS),
        (Source.CLAIM, then(_NVIDIA_MPS, _nvidia_claim_mps)),
    )
    for kind in ("GpuConfig", "MigDeviceConfig")
}
