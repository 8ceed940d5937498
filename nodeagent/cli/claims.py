"""`nodeagent claims`: the resource claims that the running agent serves."""

from __future__ import annotations

from argparse import Namespace
from datetime import UTC, datetime

from nodeagent.cli.agent_client import agent_address, get
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import Output
from nodeagent.terminal.claims_page import claims_page
from nodeagent.terminal.page import line

_NONE_SERVED = "This agent serves no claims: dra.mode is off, or the node is in no cluster."
_KEYS = ("node", "observedAt", "claims", "lessOffered")


def run(options: Namespace, output: Output) -> ExitCode:
    """Show them once."""
    status = get(agent_address(options), "/v1/status")
    if "claims" in status:
        less_offered = status.get("lessOffered", ())
        output.page(claims_page(status["claims"], datetime.now(UTC), less_offered))
    else:
        output.page((line(_NONE_SERVED),))
    output.document({key: status[key] for key in _KEYS if key in status})
    return ExitCode.DONE
