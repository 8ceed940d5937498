"""The settings in force for a command: the file, the environment, then the command's flags."""

from __future__ import annotations

import os
from collections.abc import Mapping

from nodeagent.cli.options import Options
from nodeagent.settings import Settings, load_settings

_SETTINGS = {  # by the option that overrides it
    "drift": "drift",
    "kubeconfig": "kubernetes.kubeconfig",
    "listen": "api.listen",
    "node_name": "node_name",
    "parallel": "gpu.parallel",
    "plan": "plan.file",
    "reset": "reset",
    "resync": "resync.interval",
    "run_dir": "run.dir",
    "source": "plan.source",
    "state_dir": "state.dir",
}


def command_settings(options: Options, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings for a command that does one thing and ends; raises UsageError."""
    variables = os.environ if environment is None else environment
    return load_settings(getattr(options, "settings", None), variables, flags_of(options))


def flags_of(options: Options) -> dict[str, object]:
    """The settings that the command line gives, by their names; None where it does not."""
    return {name: getattr(options, option, None) for option, name in _SETTINGS.items()}
