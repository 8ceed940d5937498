"""The parsed command line, typed."""

from __future__ import annotations

import argparse
from pathlib import Path


class Options(argparse.Namespace):
    """The parsed command line; which fields are set depends on the command. Those that are settings
    are in `command_settings`, but for what is also read here.
    """

    command: str
    simulate: str | None
    state: Path | None
    output: str
    archive: Path
    no_color: bool
    file: str | None
    configuration: str | None
    wait: float
    export_format: str
    watch: bool
    one_gpu: str | None
    events: bool
    subject: str
    codes: list[str]
    shell: str
    subcommand: str
    device: str
    pid: int | None
    process_command: str
    memory: int
    follow: bool
    function: str | None
    code: str | None
    count: int | None
    hang: bool
    latency: float | None
    gpu: int | None
    lost: int | None
    clear: bool
    settings: Path | None
    listen: str | None
    force: bool
    timeout: float | None
    env: Path | None
    slot: str | None
    on_device: str | None
    allocate: int | None
    uid: int | None
    seconds: float | None
    knob: str | None
    value: str | None
    share: float
    xid: int
    sensor: str | None
    figure: float | None
