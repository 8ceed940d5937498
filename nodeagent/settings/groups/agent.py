"""How the agent itself runs: where it listens, what it keeps, what it logs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from nodeagent.settings.groups.group import Group
from nodeagent.settings.values import Address, FilePath, ListenAddress


class ApiSettings(Group):
    """The agent's local HTTP API."""

    listen: ListenAddress = Field(
        Address("127.0.0.1", 9470),
        description="Where the read-only API listens: HOST:PORT; without a host, on all addresses.",
    )


class RunSettings(Group):
    """What lives as long as the agent runs."""

    dir: FilePath = Field(
        Path("/run/nodeagent"), description="Directory for what a reboot may take away: sockets."
    )


class StateSettings(Group):
    """What must survive a restart."""

    dir: FilePath = Field(
        Path("/var/lib/nodeagent"), description="Directory for what must survive a restart."
    )


class LogSettings(Group):
    """What is logged, to standard error."""

    format: Literal["auto", "json", "console"] = Field(
        "auto", description="json, console (for people), or auto: console on a terminal, else json."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least severe messages that are logged."
    )
