"""`nodeagent mps`: the MPS daemons of the running agent, and what can be done to them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from nodeagent.cli.agent_client import (
    AgentRefused,
    AgentUnreachable,
    agent_address,
    get,
    post,
)
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import Output, complain
from nodeagent.errors import UsageError
from nodeagent.terminal.mps_page import clients_page, daemons_page
from nodeagent.terminal.page import Line, line

_PATH = "/v1/mps"
_RESTART_PATIENCE = 300.0  # seconds: an end, a start and the limits, each with its own deadline
_MARGIN = 120.0  # seconds beyond the time to drain: the end itself has deadlines too

_BAD_USAGE = frozenset({400, 404})
_IN_USE = frozenset({409, 504})


def run(options: Namespace, output: Output) -> ExitCode:
    """Show the daemons or their clients, or have one restarted or drained."""
    address = agent_address(options)
    try:
        match options.subcommand:
            case "status" | "clients" as what:
                query = f"?{urlencode({'device': options.device})}" if options.device else ""
                answer = get(address, _PATH + query)
                page = (daemons_page if what == "status" else clients_page)(answer)
            case "restart":
                body = {"device": options.device, "force": options.force}
                answer = post(address, f"{_PATH}/restart", body, patience=_RESTART_PATIENCE)
                page = _done(answer)
            case "drain":
                timeout = options.timeout
                body = {"device": options.device, "timeout": timeout, "force": options.force}
                patience = None if timeout is None else timeout + _MARGIN
                answer = post(address, f"{_PATH}/drain", body, patience=patience)
                page = _done(answer)
            case _:
                raise UsageError(f"there is no mps {options.subcommand}")
    except AgentUnreachable as error:
        if options.state is None or options.subcommand in {"status", "clients"}:
            raise
        remedy = "an agent on simulated GPUs has that socket only with a --run-dir: run it with one"
        raise AgentUnreachable(
            error.message, remedy=f"{remedy}, and give the same one to nodeagent mps"
        ) from None
    except AgentRefused as refusal:
        if refusal.status in _BAD_USAGE:  # such as a device that is not there
            raise UsageError(refusal.message, remedy=refusal.remedy) from None
        if refusal.status not in _IN_USE:
            raise
        complain(refusal)
        return ExitCode.BLOCKED
    output.page(page)
    output.document(answer)
    return ExitCode.DONE


def _done(answer: Mapping[str, Any]) -> tuple[Line, ...]:
    return (line(str(answer.get("message", "done"))),)
