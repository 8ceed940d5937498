"""`nodeagent completion`: prints the script for one shell."""

from __future__ import annotations

from nodeagent.cli.command_tree import command_tree
from nodeagent.cli.completion import bash, fish, zsh
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.options import Options
from nodeagent.cli.output import Output

_SCRIPTS = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}


def run(options: Options, output: Output) -> ExitCode:
    """Print it, whatever the format: a shell reads it."""
    output.text(_SCRIPTS[options.shell](command_tree()))
    return ExitCode.DONE
