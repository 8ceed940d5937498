"""What stands in the way of MPS on a device, in the words of the person who wrote the plan."""

from __future__ import annotations

from nodeagent.plan.observed import Gpu, Usage
from nodeagent.plan.problems import Code, Problem


def daemon_in_use(gpu: Gpu, device: str, users: Usage, *, why: str, path: str) -> Problem:
    """A daemon that would have to be ended and serves somebody, or nobody knows whom."""
    return Problem(
        Code.IN_USE,
        f"the MPS daemon of {device} would have to be stopped ({why}), but the device is in use "
        f"by {users}",
        "end what uses it, or wait for its end",
        gpu=gpu.uuid,
        path=path,
    )


def held_past_mps(gpu: Gpu, device: str, users: Usage, path: str) -> Problem:
    """Somebody uses the device without MPS, whose server could not open it beside them."""
    return Problem(
        Code.IN_USE,
        f"{device} cannot be given to MPS alone (compute mode EXCLUSIVE_PROCESS) while it is in "
        f"use past MPS by {users}",
        "end what uses it, wait for its end, or leave compute modes alone (setting "
        "mps.computeMode: leave)",
        gpu=gpu.uuid,
        path=path,
    )
