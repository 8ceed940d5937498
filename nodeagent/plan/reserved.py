"""Room on a GPU that a goal leaves alone: its own part is planned as if the rest were not there.

A claim's change works on that claim's instances alone, a plan on those that no claim has. So
neither sees the other's instances, and neither can take them away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nodeagent.plan.desired import DesiredGpu, DesiredNode, Reserved
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import replace

BesideClaims = Callable[[DesiredGpu, Gpu], DesiredGpu]
"""The goal of a GPU as it is beside what claims have there."""


def unclaimed(observed: ObservedNode, beside: BesideClaims) -> ObservedNode:
    """The node without the instances of claims, of which a document says nothing: what it wants of
    all MIG devices there are, it wants of the others.
    """
    nothing = DesiredGpu(None, "")
    gpus = tuple(without(gpu, beside(nothing, gpu).reserved) for gpu in observed.gpus)
    return replace(observed, gpus=gpus)


def beside_all(desired: DesiredNode, observed: ObservedNode, beside: BesideClaims) -> DesiredNode:
    """What is desired, beside what claims have now."""
    here = {gpu.key: gpu for gpu in observed.gpus}
    gpus = {
        key: beside(goal, here[key]) if key in here else goal for key, goal in desired.gpus.items()
    }
    return replace(desired, gpus=gpus)


def without(gpu: Gpu, reserved: Sequence[Reserved]) -> Gpu:
    """The GPU without the instances that lie where something is reserved for one like them, and
    without how it is shared as a whole where that is not this goal's.
    """
    if any(one.shared for one in reserved):
        gpu = replace(gpu, mps=None, earlier_mode=None, earlier_time_slice=None)
    theirs = {(r.profile, r.placement) for r in reserved}
    if not theirs:
        return gpu
    mine = tuple(i for i in gpu.instances if (i.profile, i.placement) not in theirs)
    return replace(gpu, instances=mine)


def in_the_way(gpu: Gpu, reserved: Sequence[Reserved], impossible: str, path: str) -> Problem:
    """What is reserved forbids `impossible` now."""
    message = f"{impossible} beside {', '.join(map(str, reserved))}"
    ways = []
    if any(one.owner for one in reserved):
        ways.append("end its pods, `nodeagent claims` lists them")
    if not all(one.owner for one in reserved):
        status = f"`nodeagent status --gpu {gpu.index}`"
        ways.append(f"see with {status} what has no claim, and how it is removed")
    remedy = ", or ".join([*ways, "request what fits beside it"])
    return Problem(code=Code.IN_USE, message=message, remedy=remedy, gpu=gpu.uuid, path=path)
