"""The options of `nodeagent mps`."""

from __future__ import annotations

import argparse

from nodeagent.cli.values import seconds

MPS_COMMANDS = {
    "status": "the daemons: state, user, restarts, shares",
    "clients": "who uses a device through MPS, with limits and use",
    "restart": "end a device's daemon and start it anew",
    "drain": "let no new clients in, wait for those that are there, then end the daemon",
}

_DEVICE = "a GPU by index or UUID, or a MIG device by UUID or by GPU:SLICE (0:4)"


def add_mps_options(name: str, parser: argparse.ArgumentParser) -> None:
    """What `mps NAME` takes beside what the agent is found by."""
    if name in ("status", "clients"):
        parser.add_argument(
            "device", nargs="?", default="", metavar="DEVICE", help=f"{_DEVICE} (default: all)"
        )
        return
    parser.add_argument("device", metavar="DEVICE", help=_DEVICE)
    if name == "drain":
        parser.add_argument(
            "--timeout",
            metavar="SECONDS",
            type=seconds,
            help="wait so long for the clients (default: however long it takes)",
        )
    parser.add_argument(
        "--force",
        action="store_true",
        help="at the end of the time, even if clients lose their work"
        if name == "drain"
        else "even if clients lose their work",
    )
