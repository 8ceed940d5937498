"""`nodeagent mps`: the MPS daemons of the running agent, and what can be done to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import urlencode

from nodeagent.cli.agent_client import AgentRefused, get, post
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.options import Options
from nodeagent.cli.output import Output, complain
from nodeagent.cli.status import agent_address
from nodeagent.errors import UsageError
from nodeagent.terminal.mps_page import clients_page, daemons_page
from nodeagent.terminal.page import line

_PATH = "/v1/mps"
_RESTART_PATIENCE = 300.0  # seconds: an end, a start and the limits, each with its own deadline
_MARGIN = 120.0  # seconds beyond the time to drain: the end itself has deadlines too

_BAD_REQUEST, _NOT_FOUND = 400, 404
_IN_USE = frozenset({409, 504})


def run(options: Options, output: Output) -> ExitCode:
    """Show the daemons or their clients, or have one restarted or drained."""
    try:
        match options.mps:
            case "status":
                answer = _asked(options)
                output.page(daemons_page(answer))
            case "clients":
                answer = _asked(options)
                output.page(clients_page(answer))
            case "restart":
                answer = _restarted(options)
                output.page([line(str(answer.get("message", "done")))])
            case "drain":
                answer = _drained(options)
                output.page([line(str(answer.get("message", "done")))])
            case _:
                raise UsageError(f"there is no mps {options.mps}")
    except AgentRefused as refusal:
        if refusal.status not in _IN_USE:
            _raise(refusal)
        complain(refusal)
        return ExitCode.BLOCKED
    output.document(answer)
    return ExitCode.DONE


def _asked(options: Options) -> Mapping[str, Any]:
    query = f"?{urlencode({'device': options.device})}" if options.device else ""
    return get(agent_address(options), _PATH + query)


def _restarted(options: Options) -> Mapping[str, Any]:
    return post(
        agent_address(options),
        f"{_PATH}/restart",
        {"device": options.device, "force": options.force},
        patience=_RESTART_PATIENCE,
    )


def _drained(options: Options) -> Mapping[str, Any]:
    timeout = options.timeout
    return post(
        agent_address(options),
        f"{_PATH}/drain",
        {"device": options.device, "timeout": timeout, "force": options.force},
        patience=None if timeout is None else timeout + _MARGIN,
    )


def _raise(refusal: AgentRefused) -> NoReturn:
    """A device that is not there is bad usage; everything else is a failure."""
    if refusal.status in (_BAD_REQUEST, _NOT_FOUND):
        raise UsageError(refusal.message, remedy=refusal.remedy) from None
    raise refusal
