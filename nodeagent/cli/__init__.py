"""The commands: what they take, what they print and how they end.

`program.main` parses the command line, runs one command and turns errors into exit codes. Each
command lives in its own module and is imported only when it is the one asked for, because the
time of a whole `assert` is counted in tenths of a second.
"""

from nodeagent.cli.program import main

__all__ = ["main"]
