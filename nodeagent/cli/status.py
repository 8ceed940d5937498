"""`nodeagent status`: the running agent's picture of the node."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from nodeagent.cli.agent_client import AgentAddress, AgentUnreachable, agent_address, get
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.options import Options
from nodeagent.cli.output import Output
from nodeagent.terminal.page import Line, Span, Tone, line
from nodeagent.terminal.status_page import status_page

_PATH = "/v1/status"
_PACE = 1.0  # seconds between two looks while watching


def run(options: Options, output: Output) -> ExitCode:
    """Show it once, or follow it until Ctrl-C."""
    address = agent_address(options)
    if options.watch:
        _watch(address, output)
        return ExitCode.DONE
    status = get(address, _PATH)
    output.page(status_page(status, output.width))
    output.document(status)
    return ExitCode.DONE


def _watch(address: AgentAddress, output: Output) -> None:
    """Every new picture; one JSON document a line where a program reads."""
    if output.is_text and output.painted:
        from nodeagent.terminal.colour import screen

        with screen() as show:
            for _, page in _changes(address, output):
                show(page)
    for status, page in _changes(address, output):
        if output.is_text:
            output.page((*page, ()))
        elif output.format == "json":
            output.text(json.dumps(status, ensure_ascii=False) + "\n")
        else:
            output.text("---\n")
            output.document(status)
        if output.closed:
            return


def _changes(
    address: AgentAddress, output: Output
) -> Iterator[tuple[Mapping[str, Any], tuple[Line, ...]]]:
    """The agent's status whenever it differs from the one before; an agent that stops is waited
    for.
    """
    shown: object = None
    first = True
    while True:
        try:
            status = get(address, _PATH)
            page = status_page(status, output.width)
        except AgentUnreachable as error:
            if first:
                raise
            status = {"phase": "unknown", "problems": [{"message": error.message}]}
            page = (line(Span(error.message, Tone.BAD)),)
        first = False
        known = {key: value for key, value in status.items() if key != "observedAt"}
        if known != shown:
            shown = known
            yield status, page
        time.sleep(_PACE)
