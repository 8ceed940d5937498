"""Preflight: the plan, from where the agent will take it, and whether it fits the node."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from nodeagent.cli import event_loop
from nodeagent.cli.checks.findings import Finding, error, ok, warning
from nodeagent.cluster.plan_sources.registry import CARRIERS
from nodeagent.errors import DocumentError
from nodeagent.plan.desired import PlanDocument
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.resolve import resolve
from nodeagent.plan.shares import Host
from nodeagent.reconcile.plan_file import PlanFile
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.settings import PlanSettings

if TYPE_CHECKING:
    from nodeagent.cluster.client.node_view import NodeView


def file_finding(plan: PlanSettings) -> tuple[Finding, PlanDocument | None]:
    """Whether the plan file can be read and is a plan; whether it fits the node comes later."""
    update = _file_update(plan)
    if isinstance(update, NoPlan):
        remedy = "write one; start with the output of nodeagent export"
        return warning("plan", f"{plan.file} does not exist", remedy), None
    return _update_finding(update, str(plan.file), "")


def node_finding(
    node: NodeView, source: str, plan: PlanSettings
) -> tuple[Finding, PlanDocument | None]:
    """What the Node asks for; the document where it is one that can be read without the cards."""
    carrier = CARRIERS[source]
    if source == "annotation":
        from nodeagent.cluster.plan_sources import annotation

        update = annotation.offer(node.annotations, _file_update(plan))
        where = f"what the annotations of Node {node.name} ask for"
        return _update_finding(update, where, carrier.remedy)
    where, values = f"{carrier.kind} {carrier.key}", carrier.values(node)
    if not values:
        return warning("plan", f"the Node has no {where}", carrier.remedy), None
    return ok("plan", f"asked for by {where}: {', '.join(values)}"), None


def fit_finding(document: PlanDocument, observed: ObservedNode, host: Host) -> Finding:
    """Whether the plan names only what the node has, and asks only for what can be."""
    try:
        resolve(document, observed, host)
    except DocumentError as refusal:
        return error("plan on this node", refusal.message, refusal.remedy)
    return ok("plan on this node", "it names what the node has")


def _file_update(plan: PlanSettings) -> PlanUpdate:
    """By the agent's own reader of plan files, so what is said here holds for the agent."""
    updates: list[PlanUpdate] = []
    event_loop.run(PlanFile(plan.file, updates.append, configuration=plan.name).refresh())
    return updates[-1]


def _update_finding(
    update: PlanUpdate, where: str, remedy: str
) -> tuple[Finding, PlanDocument | None]:
    """Whether what is asked for `where` is a plan; `remedy` is for when nothing is."""
    from nodeagent.documents.reading import read_document

    match update:
        case NoPlan(reason):
            return warning("plan", reason, remedy), None
        case UnreadablePlan(problem):
            return error("plan", problem.message, problem.remedy), None
        case PlanText(text, configuration):
            try:
                document = read_document(text, configuration=configuration)
            except DocumentError as refusal:
                return error("plan", f"{where}: {refusal.message}", refusal.remedy), None
            return ok("plan", f"{where} is well-formed"), document
        case _ as never:
            assert_never(never)
