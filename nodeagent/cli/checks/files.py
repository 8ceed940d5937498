"""Preflight: files that the settings name, and the plan, from where the agent will take it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from nodeagent.api.web_config import read_web_config
from nodeagent.cli import event_loop
from nodeagent.cli.checks import PreflightFinding, error, ok, warning
from nodeagent.cluster.plan_sources.registry import CARRIERS
from nodeagent.documents.reading import read_document
from nodeagent.documents.xids import xid_table
from nodeagent.errors import DocumentError, NodeagentError, UsageError
from nodeagent.metrics.selection import read_selection
from nodeagent.plan.desired import PlanDocument
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.resolve import resolve
from nodeagent.plan.shares import Host
from nodeagent.reconcile.plan_file import PlanFile
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.settings import HealthSettings, MetricsSettings, PlanSettings
from nodeagent.telemetry.counters_file import counters_text
from nodeagent.telemetry.kernel_errors import open_log
from nodeagent.views.node_state import FOR_CLAIMS

if TYPE_CHECKING:
    from nodeagent.cluster.client.node_view import NodeView


def health_findings(settings: HealthSettings, *, simulated: bool) -> Iterator[PreflightFinding]:
    """The table of XIDs, and whether the kernel log may be read."""
    if settings.xids is not None:
        try:
            xid_table(settings.xids)
            yield ok("table of XIDs", f"{settings.xids} is accepted")
        except UsageError as wrong:
            yield error("table of XIDs", wrong)
    if not simulated or "kernel_log" in settings.given:
        try:
            os.close(open_log(settings.kernel_log))
            yield ok("kernel log", f"{settings.kernel_log} can be read")
        except NodeagentError as failed:
            yield warning("kernel log", failed)


def metrics_findings(settings: MetricsSettings) -> Iterator[PreflightFinding]:
    """The file of counters, each of its lines, and the web-config file; those that are named."""
    if settings.counters is not None:
        yield from _counters_findings(settings.counters)
    if settings.web_config is not None:
        yield _web_config_finding(settings.web_config, listens=settings.listen is not None)


def _counters_findings(path: Path) -> Iterator[PreflightFinding]:
    check = "file of counters"
    try:
        selection = read_selection(counters_text(path))
    except NodeagentError as wrong:
        yield error(check, wrong)
        return
    fields = len(selection.metrics) + len(selection.labels)
    yield ok(check, f"{path} has {fields} fields that can be exported")
    for found in selection.findings:
        yield warning(check, NodeagentError(f"line {found.line}: {found.message}"), found.remedy)


def _web_config_finding(path: Path, *, listens: bool) -> PreflightFinding:
    check = "web-config file"
    if not listens:
        return warning(check, NodeagentError.of("webConfigUnused"))
    try:
        config = read_web_config(path)
        if config.tls is not None:
            config.tls.context()
    except NodeagentError as wrong:
        return error(check, wrong)
    users = f"{len(config.users)} users" if config.users else "no passwords"
    return ok(check, f"{path}: {'TLS' if config.tls else 'no TLS'}, {users}")


def file_finding(plan: PlanSettings) -> tuple[PreflightFinding, PlanDocument | None]:
    """Whether the plan file can be read and is a plan; whether it fits the node comes later."""
    update = _file_update(plan)
    if isinstance(update, NoPlan):
        return warning("plan", NodeagentError.of("noPlanFile", path=plan.file)), None
    return _update_finding(update, str(plan.file), "")


def node_finding(
    node: NodeView, source: str, plan: PlanSettings, *, for_claims: bool = False
) -> tuple[PreflightFinding, PlanDocument | None]:
    """What the Node asks for; the document where it is one that can be read without the cards.
    `for_claims`: where nothing is, GPUs are for claims.
    """
    carrier = CARRIERS[source]
    without = ok("plan", f"{FOR_CLAIMS} (dra.mode)") if for_claims else None
    if source == "annotation":
        from nodeagent.cluster.plan_sources import node_source

        update = node_source.offer(node.annotations, _file_update(plan))
        if without and isinstance(update, NoPlan) and update.problem is None:
            return without, None
        where = f"what the annotations of Node {node.name} ask for"
        return _update_finding(update, where, carrier.remedy)
    where, values = f"{carrier.kind} {carrier.key}", carrier.values(node)
    if not values:
        missing = NodeagentError(f"the Node has no {where}", remedy=carrier.remedy)
        return without or warning("plan", missing), None
    return ok("plan", f"asked for by {where}: {', '.join(values)}"), None


def fit_finding(document: PlanDocument, observed: ObservedNode, host: Host) -> PreflightFinding:
    """Whether the plan names only what the node has, and asks only for what can be."""
    try:
        resolve(document, observed, host)
    except DocumentError as refusal:
        return error("plan on this node", refusal)
    return ok("plan on this node", "it names what the node has")


def _file_update(plan: PlanSettings) -> PlanUpdate:
    """Read it as the agent does, so what is said here holds for the agent."""
    updates: list[PlanUpdate] = []
    event_loop.run(PlanFile(plan.file, updates.append, configuration=plan.name).refresh())
    return updates[-1]


def _update_finding(
    update: PlanUpdate, where: str, remedy: str
) -> tuple[PreflightFinding, PlanDocument | None]:
    """Whether what is asked for `where` is a plan; `remedy` is for when nothing is."""
    match update:
        case NoPlan(reason):
            return warning("plan", NodeagentError(reason), remedy), None
        case UnreadablePlan(problem):
            return error("plan", problem), None
        case PlanText(text, configuration):
            try:
                document = read_document(text, configuration=configuration)
            except DocumentError as refusal:
                wrong = NodeagentError(f"{where}: {refusal.message}", remedy=refusal.remedy)
                return error("plan", wrong), None
            return ok("plan", f"{where} is well-formed"), document
        case _ as never:
            assert_never(never)
