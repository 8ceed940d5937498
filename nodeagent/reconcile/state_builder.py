"""The node's state as a round leaves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from nodeagent.plan.observed import Access, ObservedNode
from nodeagent.plan.problems import Problem
from nodeagent.reconcile.active_plan import Judgement, PlanInForce
from nodeagent.views.mps_state import MpsOverview
from nodeagent.views.node_state import NodeState, Phase, phase_of


def described(
    before: NodeState,
    in_force: PlanInForce,
    judgement: Judgement,
    observed: ObservedNode,
    *,
    problems: Sequence[Problem],
    mps: MpsOverview,
    unfinished: bool,
) -> NodeState:
    """What is so after a look. `unfinished`: the round was halted, or is not over."""
    plan, refused = judgement.plan, judgement.refusal
    phase = phase_of(refused=refused is not None, plan=plan, problems=problems, mps=mps.daemons)
    if phase is Phase.FAILED and unfinished and not problems:
        phase = Phase.WORKING
    text = in_force.text
    return replace(
        before,
        phase=phase,
        digest=in_force.digest,
        configuration=text.configuration if text else None,
        refusal=refused,
        note=in_force.note,
        observed=observed,
        observed_at=datetime.now(UTC),
        plan=plan,
        problems=(
            *(refused.problems if refused else ()),
            *dict.fromkeys(problems),
            *in_force.source_problems,
        ),
        driver_error=_silence(observed),
        mps=mps.daemons,
        rounds=before.rounds + (not unfinished),
    )


def described_without_look(
    before: NodeState, in_force: PlanInForce, problems: Sequence[Problem]
) -> NodeState:
    """What is so while the hardware cannot be looked at; the first of the problems says why."""
    return replace(
        before,
        phase=Phase.FAILED,
        driver_error=problems[0].message,
        problems=(*problems, *in_force.unread_problems, *in_force.source_problems),
        note=in_force.note,
    )


def _silence(observed: ObservedNode) -> str:
    """Why the driver does not answer at all; "" when it does, be it for one GPU."""
    if any(gpu.access is not Access.UNKNOWN for gpu in observed.gpus):
        return ""
    return observed.gpus[0].access_reason if observed.gpus else ""
