"""`nodeagent export`: the node as it is, as a document that brings it back."""

from __future__ import annotations

from argparse import Namespace

from nodeagent.cli import event_loop
from nodeagent.cli.command_settings import command_settings
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import Output, complain
from nodeagent.cli.shared_node import looking_at
from nodeagent.documents import writing
from nodeagent.plan.observed import Access, ObservedNode


def run(options: Namespace, output: Output) -> ExitCode:
    """Write the document in YAML, or as JSON; fails when a GPU had to be left out."""
    observed = event_loop.run(_observed(options))
    _write(observed, output, mig_parted=options.export_format == "mig-parted")
    silent = [gpu for gpu in observed.gpus if gpu.access is not Access.OK]
    for gpu in silent[:1]:
        more = f" (and {len(silent) - 1} more)" if len(silent) > 1 else ""
        complain(
            f"GPU {gpu.index}{more} does not answer and is left out: {gpu.access_reason}",
            "applied elsewhere, the document leaves that GPU as it is",
        )
    return ExitCode.FAILED if silent else ExitCode.DONE


async def _observed(options: Namespace) -> ObservedNode:
    async with looking_at(options, command_settings(options), None) as (node, _):
        return await node.observe()


def _write(observed: ObservedNode, output: Output, *, mig_parted: bool) -> None:
    if output.format == "json":
        data = writing.mig_parted_data if mig_parted else writing.plan_data
        output.document(data(observed))
    else:
        text = writing.mig_parted_document if mig_parted else writing.plan_document
        output.text(text(observed))
