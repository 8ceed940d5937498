"""Every setting: its name, default, unit and meaning."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from nodeagent.settings.values import (
    Address,
    Command,
    Duration,
    FilePath,
    ListenAddress,
    Text,
    WholeNumber,
)


def _source(value: object) -> object:
    if value in {"annotation", "nos", "mig-config"}:
        raise ValueError(f"not in this version: {value}; accepted: file")
    return value


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ApiSettings(_Group):
    """The agent's local HTTP API."""

    listen: ListenAddress = Field(
        Address("127.0.0.1", 9470),
        description="Where the read-only API listens: HOST:PORT; without a host, on all addresses.",
    )


class RunSettings(_Group):
    """What lives as long as the agent runs."""

    dir: FilePath = Field(
        Path("/run/nodeagent"), description="Directory for what a reboot may take away: sockets."
    )


class StateSettings(_Group):
    """What must survive a restart."""

    dir: FilePath = Field(
        Path("/var/lib/nodeagent"), description="Directory for what must survive a restart."
    )


class PlanSettings(_Group):
    """Where the plan comes from."""

    source: Annotated[Literal["file"], BeforeValidator(_source)] = Field(
        "file", description="Where the plan comes from. This version reads a file."
    )
    file: FilePath = Field(
        Path("/etc/nodeagent/plan.yaml"),
        description="The plan, or an nvidia-mig-parted file; a change in it acts at once.",
    )
    name: Text | None = Field(
        None, description="The configuration to take when the file is an nvidia-mig-parted file."
    )


class ResyncSettings(_Group):
    """How often the hardware is looked at when nothing else asks for it."""

    interval: Duration = Field(
        60.0, description="Seconds between two looks at the hardware when nothing happens."
    )


class GpuSettings(_Group):
    """How GPUs are worked on."""

    parallel: WholeNumber = Field(
        8, description="How many GPUs are changed at once; the steps of one GPU stay in order."
    )


class DriverSettings(_Group):
    """How long the driver may take."""

    observe_deadline: Duration = Field(
        10.0, description="Seconds one GPU may take to be read; after that its state is unknown."
    )
    step_deadline: Duration = Field(
        60.0, description="Seconds one change of a GPU may take; after that its state is unknown."
    )


class LogSettings(_Group):
    """What is logged, to standard error."""

    format: Literal["auto", "json", "console"] = Field(
        "auto", description="json, console (for people), or auto: console on a terminal, else json."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least severe messages that are logged."
    )


class Settings(_Group):
    """Everything that can be set."""

    node_name: Text = Field(
        default_factory=lambda: platform.node().lower(),
        description="The node's name. Default: the variable NODE_NAME, else the host name.",
    )
    api: ApiSettings = ApiSettings()
    run: RunSettings = RunSettings()
    state: StateSettings = StateSettings()
    plan: PlanSettings = PlanSettings()
    resync: ResyncSettings = ResyncSettings()
    drift: Literal["mend", "report"] = Field(
        "mend", description="When someone else changes the layout: mend it, or only report it."
    )
    reset: Literal["never", "whenIdle"] = Field(
        "never",
        description="Whether a GPU proven idle may be reset where its MIG mode needs that.",
    )
    nvidia_smi: Command = Field(
        ("nvidia-smi",),
        description="The command that resets a GPU; split into words as a shell does, run without.",
    )
    gpu: GpuSettings = GpuSettings()
    driver: DriverSettings = DriverSettings()
    log: LogSettings = LogSettings()
