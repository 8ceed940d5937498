"""What a plan would do to the node as it was last seen, without touching anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nodeagent.documents.reading import digest_of, read_document
from nodeagent.errors import DocumentError
from nodeagent.plan.numbers import numbered
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import Policy, Verdict
from nodeagent.plan.planner import plan
from nodeagent.plan.reserved import BesideClaims, beside_all, unclaimed
from nodeagent.plan.resolve import resolve, verdict_of
from nodeagent.plan.shares import Host
from nodeagent.reconcile.active_plan import HostFor
from nodeagent.reconcile.plan_update import KeptPlan, PlanText
from nodeagent.views.plan_report import plan_json, rejection_json

_SOURCE = "preview"


@dataclass(frozen=True, slots=True)
class Preview:
    """`readable`: the text is a document; `report` has the JSON shape of a plan."""

    readable: bool
    verdict: Verdict
    report: dict[str, Any]


def preview(
    text: bytes,
    configuration: str | None,
    observed: ObservedNode,
    policy: Policy,
    host_for: HostFor = lambda _: Host(),
    *,
    beside: BesideClaims = lambda goal, _: goal,
    kept: KeptPlan | None = None,
) -> Preview:
    """Read, resolve and plan `text` for `observed`, `beside` what claims have; a refusal is an
    answer, not an error. The plan `kept` in force means the GPUs by its own numbers.
    """
    try:
        document = read_document(text, configuration=configuration)
    except DocumentError as error:
        report = rejection_json(
            error.problems, Verdict.INVALID, digest=digest_of(text), source=_SOURCE
        )
        return Preview(readable=False, verdict=Verdict.INVALID, report=report)
    named = observed
    if kept and kept.plan == PlanText(text, configuration):
        named = numbered(observed, kept.numbers)
    try:
        resolved = resolve(document, unclaimed(named, beside), host_for(document))
    except DocumentError as error:
        verdict = verdict_of(error)
        report = rejection_json(error.problems, verdict, digest=document.digest, source=_SOURCE)
    else:
        made = plan(beside_all(resolved, observed, beside), observed, policy)
        verdict = made.verdict
        report = plan_json(made, digest=document.digest, source=_SOURCE, policy=policy)
    return Preview(readable=True, verdict=verdict, report=report)
