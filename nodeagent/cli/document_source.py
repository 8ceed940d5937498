"""Where `plan`, `apply` and `assert` get the text of their document from."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path

from nodeagent.cli.command_settings import command_settings
from nodeagent.errors import UsageError

# The variables that users of nvidia-mig-parted have set already.
FILE_VARIABLE = "MIG_PARTED_CONFIG_FILE"
CONFIGURATION_VARIABLE = "MIG_PARTED_SELECTED_CONFIG"

LARGEST = 1 << 20  # bytes that are read; so large a document is refused, whatever else it holds


def read_content(options: Namespace) -> bytes:
    """The text that the options name, as it is; raises UsageError."""
    name = _name_of_file(options)
    if not name:
        raise UsageError("no document given", remedy="name one with -f FILE, or - for stdin")
    return _content(name)


def configuration_in(content: bytes, options: Namespace) -> str | None:
    """The configuration that is asked for, if any; raises UsageError.

    A name in the environment concerns files that have configurations, and no plan; the setting
    `plan.name` the file of the setting `plan.file` alone.
    """
    if options.configuration is not None or b"mig-configs" not in content:
        return options.configuration
    if named := os.environ.get(CONFIGURATION_VARIABLE):
        return named
    setting = command_settings(options).plan
    is_its_file = Path(_name_of_file(options)).absolute() == setting.file.absolute()
    return setting.name if is_its_file else None


def _name_of_file(options: Namespace) -> str:
    return str(options.file or os.environ.get(FILE_VARIABLE, ""))


def _content(name: str) -> bytes:
    try:
        if name == "-":
            if sys.stdin is None:
                raise UsageError("standard input is closed", remedy="name a file with -f")
            return sys.stdin.buffer.read(LARGEST)
        with Path(name).open("rb") as file:
            return file.read(LARGEST)
    except OSError as error:
        raise UsageError(
            f"{name} cannot be read: {error.strerror}", remedy="name a readable file with -f"
        ) from None
