"""Notices that a GPU was as the plan says and is so no longer, although the plan is the same.

Then somebody else changed it, by `nvidia-smi mig` for instance, or it lost its layout at a reset.
"""

from __future__ import annotations

from nodeagent.plan.desired import DesiredGpu, DesiredNode
from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.views.text import gpu_words, layout_words


class Drift:
    """What each GPU was in sync with, and which have drifted from it."""

    def __init__(self) -> None:
        self._in_sync: dict[str, DesiredGpu] = {}
        self._drifted: dict[str, DesiredGpu] = {}

    def look(self, desired: DesiredNode, plan: NodePlan) -> tuple[Gpu, ...]:
        """Compare with what was so before; the GPUs that have drifted since."""
        new = []
        for gpu_plan in plan.gpus:
            gpu = gpu_plan.before
            wanted = desired.gpus[gpu.key]
            if gpu.access is not Access.OK:
                continue
            if gpu_plan.verdict is Verdict.IN_SYNC:
                self._in_sync[gpu.uuid] = wanted
                self._drifted.pop(gpu.uuid, None)
            elif self._in_sync.pop(gpu.uuid, None) == wanted:
                self._drifted[gpu.uuid] = wanted
                new.append(gpu)
            elif self._drifted.get(gpu.uuid) != wanted:
                self._drifted.pop(gpu.uuid, None)
        return tuple(new)

    def has(self, uuid: str) -> bool:
        """Whether this GPU has drifted and is not back."""
        return uuid in self._drifted


def drift_problem(gpu: Gpu) -> Problem:
    """The problem of a GPU that drifted and is to be left so."""
    return Problem(
        Code.DRIFT,
        f"{gpu_words(gpu)} was as the plan says and was then changed by somebody else: it now has "
        f"{layout_words(gpu)}",
        remedy="run nodeagent apply, change the plan, or set `drift: mend`",
        gpu=gpu.uuid,
    )
