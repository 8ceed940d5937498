"""`nodeagent plan` and `assert`: what would be done and why, and whether that is nothing."""

import os
import sys
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path

from nodeagent.cli import event_loop, exit_codes
from nodeagent.cli.command_settings import command_settings
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.node import as_accepted, as_judged, recorded_claims
from nodeagent.cli.output import Output, complain_about
from nodeagent.cli.shared_node import reading_node
from nodeagent.documents.reading import digest_of, read_document
from nodeagent.errors import DocumentError, UsageError
from nodeagent.plan.desired import PlanDocument, node_with_claims, unclaimed
from nodeagent.plan.plan import GpuPlan, NodePlan, Policy, Verdict
from nodeagent.plan.planner import plan
from nodeagent.plan.resolve import resolve, verdict_of
from nodeagent.settings import Settings
from nodeagent.structs import replace
from nodeagent.terminal.plan_page import assert_page, plan_page
from nodeagent.views.mps import unready_daemons
from nodeagent.views.plan_report import plan_json

SOURCE = "file"

# The variables that users of nvidia-mig-parted have set already.
_FILE, _CONFIGURATION = "MIG_PARTED_CONFIG_FILE", "MIG_PARTED_SELECTED_CONFIG"
_MAX_TEXT = 1 << 20  # bytes that are read; so large a document is refused, whatever else it holds


def run_plan(options: Namespace, output: Output) -> ExitCode:
    """Show the plan for the document."""
    document = read_or_report(options, output)
    settings = command_settings(options)
    found = event_loop.run(planned(options, settings, document))
    report(found, document, output, settings.policy)
    return exit_codes.of_plan(found)


def run_assert(options: Namespace, output: Output) -> ExitCode:
    """Say whether nothing would have to be done: exit code 0 or 1, or 2 for a bad document."""
    document = read_or_report(options, output)
    settings = command_settings(options)
    found = event_loop.run(planned(options, settings, document))
    if is_rejection(found) or not output.is_text:
        report(found, document, output, settings.policy)
    else:
        output.page(assert_page(found))
    if exit_codes.of_plan(found) is ExitCode.BAD_DOCUMENT:
        return ExitCode.BAD_DOCUMENT
    unready = any(gpu.problems for gpu in found.gpus)
    return ExitCode.DONE if found.verdict is Verdict.IN_SYNC and not unready else ExitCode.FAILED


async def planned(options: Namespace, settings: Settings, document: PlanDocument) -> NodePlan:
    """The plan for the node as it is now; for a rejected document one without GPUs."""
    async with reading_node(options, settings, document) as (node, host):
        observed = as_judged(options, settings, await node.observe())
    with_claims = recorded_claims(options, settings)
    try:
        named = as_accepted(options, settings, observed, document.digest)
        desired = resolve(document, unclaimed(named, with_claims), host)
    except DocumentError as error:
        return rejection(error, document)
    found = plan(node_with_claims(desired, observed, with_claims), observed, settings.policy)
    return replace(found, gpus=tuple(map(with_unready, found.gpus)))


def with_unready(gpu: GpuPlan) -> GpuPlan:
    """The plan with the daemons that it has no step for, but that are not Ready.

    An agent would see to them; a single look would take them for well.
    """
    shared = any(device.mps for device in gpu.before.devices())
    if gpu.verdict is not Verdict.IN_SYNC or not shared:
        return gpu

    return replace(gpu, problems=(*gpu.problems, *unready_daemons(gpu.before)))


def rejection(refused: DocumentError, document: PlanDocument) -> NodePlan:
    """A refused document in the shape of a plan."""
    return NodePlan(verdict_of(refused), problems=refused.problems, digest=document.digest)


def report(found: NodePlan, document: PlanDocument, output: Output, policy: Policy) -> None:
    """Show the plan; a document that was rejected is complained about. `policy` is the plan's."""
    if not output.is_text:
        output.document(plan_json(found, digest=document.digest, source=SOURCE, policy=policy))
    if is_rejection(found):
        complain_about(found.problems)
    elif output.is_text:
        output.page(plan_page(found, output.width, policy))


def is_rejection(found: NodePlan) -> bool:
    """Whether the document was refused whole."""
    return not found.gpus and bool(found.problems)


# --- the document ---------------------------------------------------------------------------------


def read_or_report(options: Namespace, output: Output) -> PlanDocument:
    """The document; one that is refused is also reported in the format asked for.

    Raises UsageError and DocumentError.
    """
    content = _content(options)
    try:
        return read_document(content, configuration=_configuration(content, options))
    except DocumentError as error:
        if not output.is_text:
            digest = digest_of(content) if len(content) < _MAX_TEXT else ""  # else it was not all
            refused = NodePlan(Verdict.INVALID, problems=error.problems)
            output.document(plan_json(refused, digest=digest, source=SOURCE, policy=Policy()))
        raise


def _content(options: Namespace) -> bytes:
    """The text that the options name, as it is; raises UsageError."""
    name = _file(options)
    if not name:
        raise UsageError("no document given", remedy="name one with -f FILE, or - for stdin")
    if name == "-" and sys.stdin is None:
        raise UsageError("standard input is closed", remedy="name a file with -f")
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
            return file.read(_MAX_TEXT)
    except OSError as error:
        raise UsageError.of("documentUnread", name=name, why=error.strerror) from None


def _configuration(content: bytes, options: Namespace) -> str | None:
    """The configuration that is asked for, if any; raises UsageError.

    A name in the environment concerns files that have configurations, and no plan; the setting
    `plan.name` the file of the setting `plan.file` alone.
    """
    named: str | None = options.configuration
    if named is not None or b"mig-configs" not in content:
        return named
    if named := os.environ.get(_CONFIGURATION):
        return named
    setting = command_settings(options).plan
    return setting.name if Path(_file(options)).absolute() == setting.file.absolute() else None


def _file(options: Namespace) -> str:
    return str(options.file or os.environ.get(_FILE, ""))
