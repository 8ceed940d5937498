"""The settings in force for a command: the file, the environment, then the command's flags."""

import os
from argparse import Namespace

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


def command_settings(options: Namespace) -> Settings:
    """The settings for a command that does one thing and ends; raises UsageError."""
    return load_settings(getattr(options, "settings", None), os.environ, flags_of(options))


def flags_of(options: Namespace) -> dict[str, object]:
    """The settings that the command line gives, by their names; None where it does not."""
    return {name: getattr(options, option, None) for option, name in _SETTINGS.items()}
