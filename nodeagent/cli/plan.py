"""`nodeagent plan`: what would be done, and why; touches nothing."""

from __future__ import annotations

from argparse import Namespace

from nodeagent.cli import event_loop, exit_codes
from nodeagent.cli.command_settings import command_settings
from nodeagent.cli.document_source import LARGEST, configuration_in, read_content
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.node import as_accepted, kept_claims
from nodeagent.cli.output import Output, complain_about
from nodeagent.cli.shared_node import looking_at
from nodeagent.errors import DocumentError
from nodeagent.plan.desired import PlanDocument
from nodeagent.plan.plan import GpuPlan, NodePlan, Policy, Verdict
from nodeagent.plan.planner import plan
from nodeagent.plan.reserved import beside_all, unclaimed
from nodeagent.plan.resolve import resolve, verdict_of
from nodeagent.settings import Settings
from nodeagent.structs import replace

SOURCE = "file"


def run(options: Namespace, output: Output) -> ExitCode:
    """Show the plan for the document."""
    document = read_or_report(options, output)
    settings = command_settings(options)
    found = event_loop.run(planned(options, settings, document))
    report(found, document, output, settings.policy)
    return exit_codes.of_plan(found)


async def planned(options: Namespace, settings: Settings, document: PlanDocument) -> NodePlan:
    """The plan for the node as it is now; for a rejected document one without GPUs."""
    async with looking_at(options, settings, document) as (node, host):
        observed = await node.observe()
    beside = kept_claims(options, settings)
    try:
        named = as_accepted(options, settings, observed, document.digest)
        desired = resolve(document, unclaimed(named, beside), host)
    except DocumentError as error:
        return rejection(error, document)
    found = plan(beside_all(desired, observed, beside), observed, settings.policy)
    return replace(found, gpus=tuple(map(with_unready, found.gpus)))


def with_unready(gpu: GpuPlan) -> GpuPlan:
    """The plan with the daemons that it has no step for, but that are not Ready.

    An agent would see to them; a single look would take them for well.
    """
    shared = any(device.mps for device in gpu.before.devices())
    if gpu.verdict is not Verdict.IN_SYNC or not shared:
        return gpu
    from nodeagent.views.mps_problems import unready_daemons

    return replace(gpu, problems=(*gpu.problems, *unready_daemons(gpu.before)))


def rejection(refused: DocumentError, document: PlanDocument) -> NodePlan:
    """A refused document in the shape of a plan."""
    return NodePlan(verdict_of(refused), problems=refused.problems, digest=document.digest)


def report(found: NodePlan, document: PlanDocument, output: Output, policy: Policy) -> None:
    """Show the plan; a document that was rejected is complained about. `policy` is the plan's."""
    if not output.is_text:
        from nodeagent.views.plan_report import plan_json

        output.document(plan_json(found, digest=document.digest, source=SOURCE, policy=policy))
    if is_rejection(found):
        complain_about(found.problems)
    elif output.is_text:
        from nodeagent.terminal.plan_page import plan_page

        output.page(plan_page(found, output.width, policy))


def is_rejection(found: NodePlan) -> bool:
    """Whether the document was refused whole."""
    return not found.gpus and bool(found.problems)


def read_or_report(options: Namespace, output: Output) -> PlanDocument:
    """The document; one that is refused is also reported in the format asked for.

    Raises UsageError and DocumentError.
    """
    from nodeagent.documents.reading import digest_of, read_document

    content = read_content(options)
    try:
        return read_document(content, configuration=configuration_in(content, options))
    except DocumentError as error:
        if not output.is_text:
            from nodeagent.views.plan_report import rejection_json

            digest = digest_of(content) if len(content) < LARGEST else ""  # else it was not all
            output.document(
                rejection_json(error.problems, Verdict.INVALID, digest=digest, source=SOURCE)
            )
        raise
