"""The settings in force for a command that does one thing and ends."""

from __future__ import annotations

import os
from collections.abc import Mapping

from nodeagent.cli.options import Options
from nodeagent.settings import Settings, load_settings


def command_settings(options: Options, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings file and the environment, then the flags that this command has."""
    flags = {
        "gpu.parallel": getattr(options, "parallel", None),
        "reset": getattr(options, "reset", None),
        "run.dir": getattr(options, "run_dir", None),
        "state.dir": getattr(options, "state_dir", None),
    }
    variables = os.environ if environment is None else environment
    return load_settings(getattr(options, "settings", None), variables, flags)
