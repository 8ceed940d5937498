"""How a device is shared, as the plan's `mps` and `timeSlice` that ask for just that."""

from __future__ import annotations

from typing import Any

from nodeagent.plan.accounts import ANY_USER
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance
from nodeagent.plan.shares import (
    ALL_THREADS,
    MIB,
    Account,
    ComputeMode,
    Share,
    TimeSlice,
    WantedMps,
    written_bytes,
)

_Data = dict[str, Any]


def shared_data(gpu: Gpu) -> _Data:
    """Of a GPU outside MIG mode: `mps` or `timeSlice`, or nothing."""
    if gpu.mps is not None:
        return {"mps": mps_data(gpu.mps.runs, gpu.memory)}
    if gpu.time_slice is None or gpu.compute_mode not in (None, ComputeMode.DEFAULT):
        return {}  # timeSlice would also set the compute mode
    if gpu.time_slice is TimeSlice.DEFAULT and gpu.earlier_time_slice is None:
        return {}
    return {"timeSlice": gpu.time_slice.value}


def device_data(gpu: Gpu, instance: GpuInstance, device: ComputeInstance) -> _Data:
    """Of a MIG device: `mps`, or nothing."""
    if device.mps is None:
        return {}
    profile = gpu.profile(instance.profile)
    total = device.memory.total if device.memory else 0
    return {"mps": mps_data(device.mps.runs, profile.memory if profile else total)}


def mps_data(wanted: WantedMps, memory: int) -> _Data:
    """The plan's `mps` that leads to `wanted` on a device with `memory` bytes.

    Equal replicas are written as the share that they are: where the memory differs, the document
    still asks for the same.
    """
    sharing = wanted.sharing
    data: _Data = {"user": _user(wanted.account)}
    endless = next((s for s in sharing.shares if s.count is None), None)
    if endless is not None:
        data["clients"] = _limits(endless)
    else:
        data["shares"] = {s.name: {"count": s.count, **_limits(s)} for s in sharing.shares}
    if sharing.enforce != "report":
        data["enforce"] = sharing.enforce
    if _is_oversubscribed(sharing.shares, memory):
        data["oversubscribe"] = True
    return data


def _limits(share: Share) -> _Data:
    limits: _Data = {}
    if share.memory is not None:
        limits["memory"] = written_bytes(share.memory * MIB)
    if share.threads is not None:
        limits["threads"] = int(share.threads) if share.threads.is_integer() else share.threads
    return limits


def _is_oversubscribed(shares: tuple[Share, ...], memory: int) -> bool:
    total = sum((s.count or 0) * (s.memory or 0) * MIB for s in shares)
    # Rounded to what a percentage can say here, for binary fractions do not add up.
    threads = round(sum((s.count or 0) * (s.threads or 0) for s in shares), 2)
    return total > memory or threads > ALL_THREADS


def _user(account: Account) -> int | str:
    """Exactly this account: groups come with a user that is looked up, never with uid:gid."""
    if account.any_user:
        return ANY_USER
    return account.uid if account.groups else f"{account.uid}:{account.gid}"
