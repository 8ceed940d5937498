"""`nodeagent bundle`: gathers, takes out what may be secret, and writes the archive."""

from __future__ import annotations

from argparse import Namespace

from nodeagent.cli.bundle.archive import Part, bounded, new_file, write
from nodeagent.cli.bundle.contents import gather
from nodeagent.cli.bundle.withheld import Withheld
from nodeagent.cli.command_settings import command_settings
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import Output
from nodeagent.cli.program import main
from nodeagent.terminal.page import Span, Tone, count, line


def run_bundle(options: Namespace, output: Output) -> ExitCode:
    """Write it, whatever is missing; raises UsageError for bad settings, NodeagentError where the
    file cannot be made.
    """
    settings = command_settings(options)
    withheld = Withheld(settings)
    with new_file(options.archive) as file:
        parts = [_clean(part, withheld) for part in gather(options, settings, main)]
        parts = list(bounded(parts))
        write(file, parts)
    there = [part for part in parts if not part.missing]
    missing = [part for part in parts if part.missing]
    output.page(
        [
            line(Span(f"{options.archive}: {count(len(there), 'file')}", Tone.GOOD)),
            *(line(f"  not in it: {part.name}: {part.missing}") for part in missing),
            line(f"Read it before you pass it on: tar -xzf {options.archive}"),
        ]
    )
    output.document(
        {
            "file": str(options.archive),
            "files": [part.name for part in there],
            "missing": [{"name": part.name, "reason": part.missing} for part in missing],
        }
    )
    return ExitCode.DONE


def _clean(part: Part, withheld: Withheld) -> Part:
    missing = withheld.taken_out(part.missing.encode(errors="replace")).decode(errors="replace")
    return part._replace(content=withheld.taken_out(part.content), missing=missing)
