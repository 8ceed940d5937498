"""Hooks before and after a change of devices, such as a cluster's: object, prepare, after_round."""

from datetime import datetime

from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import NodePlan
from nodeagent.plan.problems import Problem
from nodeagent.reconcile.active_plan import PlanEvaluation


class ChangeHooks:
    """What happens around a change; of a node without a cluster, nothing.

    Nothing here raises: what goes wrong becomes problems.
    """

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Problems around the node just now; part of the node's problems."""
        return ()

    async def objections(
        self, evaluation: PlanEvaluation, todo: NodePlan, observed: ObservedNode
    ) -> tuple[Problem, ...]:
        """Reasons why nothing may be changed on this node now, whatever the plan says.

        `todo` holds the GPUs that would be worked on now; it may be empty.
        """
        return ()

    async def prepare(self, todo: NodePlan) -> tuple[Problem, ...]:
        """Make ready for the steps of `todo`; with problems, none that changes a device is taken
        this time.

        May take minutes. Cancelled when the agent stops; what was begun is then put back by
        `after_round`, perhaps that of the next start.
        """
        return ()

    def after_round(
        self,
        evaluation: PlanEvaluation,
        observed: ObservedNode,
        postponed: frozenset[str] = frozenset(),
        looked_at: datetime | None = None,
    ) -> None:
        """A round is over, however it went: put back what was prepared, follow up. Does not wait;
        what it finds later is in `problems`, and wakes the loop. The GPUs that are `postponed`, by
        UUID, would not be worked on now even if their users were gone. `looked_at`: when all GPUs
        were observed last, None for just now; single ones may have been read back since.
        """
