"""The portions of a plan that are worked on in one go."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.plan.plan import GpuPlan, NodePlan, Verdict
from nodeagent.reconcile.active_plan import Judgement


def only(judgement: Judgement, gpus: tuple[GpuPlan, ...]) -> NodePlan:
    """The plan with only these of its GPUs."""
    return replace(judgement.plan or NodePlan(Verdict.APPLICABLE), gpus=gpus)


def undisturbing(todo: NodePlan) -> NodePlan:
    """The GPUs on which nobody has to be told of anything: they do not wait for the others."""
    gpus = tuple(gpu for gpu in todo.gpus if not gpu.changes_devices)
    return replace(todo, gpus=gpus)
