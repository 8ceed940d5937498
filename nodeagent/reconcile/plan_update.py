"""What a plan source has to say: a text, that there is none, or that it cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from nodeagent.plan.numbers import Numbers
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.problems import Problem


@dataclass(frozen=True, slots=True)
class PlanText:
    """A document as found; `configuration` names the one meant in an nvidia-mig-parted file."""

    text: bytes
    configuration: str | None = None


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A plan that was accepted, and the GPUs that it means by number."""

    plan: PlanText
    numbers: Numbers = ()


@dataclass(frozen=True, slots=True)
class NoPlan:
    """The carrier holds no plan; `reason` is a sentence, such as that the file is not there.

    `problem` is set where a plan is required, and None where it is optional.
    """

    reason: str
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class UnreadablePlan:
    """There is something, but it cannot be read."""

    problem: Problem


PlanUpdate = PlanText | NoPlan | UnreadablePlan


@runtime_checkable
class DeferredPlan(Protocol):
    """What a source asks for where that depends on the node's cards; a value: equal ones ask for
    the same.
    """

    def on(self, observed: ObservedNode) -> PlanUpdate:
        """What it means for this node. Pure, and called in a thread, since it may take long."""
        ...
