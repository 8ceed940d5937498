"""Room on a GPU that a goal leaves alone: its own part is planned as if the rest were not there.

A claim's change works on that claim's instances alone, a plan on those that no claim has. So
neither sees the other's instances, and neither can take them away.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.plan.desired import Reserved
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import replace


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
    remedy = "end the pods that hold it, or ask for what fits beside it"
    return Problem(Code.IN_USE, message, remedy, gpu.uuid, path)
