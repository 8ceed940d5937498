"""Where `plan`, `apply` and `assert` get their document from."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nodeagent.cli.options import Options
from nodeagent.errors import UsageError
from nodeagent.planning.desired import PlanDocument

# The variables that users of nvidia-mig-parted have set already.
FILE_VARIABLE = "MIG_PARTED_CONFIG_FILE"
CONFIGURATION_VARIABLE = "MIG_PARTED_SELECTED_CONFIG"

_LARGEST = 1 << 20  # bytes; what is larger than a plan may be is refused by its reader


def read_document(options: Options) -> PlanDocument:
    """The document that the options name; raises UsageError or DocumentError."""
    from nodeagent.documents.reading import read_document as read

    name = options.file or os.environ.get(FILE_VARIABLE)
    if not name:
        raise UsageError("no document given", remedy="name one with -f FILE, or - for stdin")
    content = _content(name)
    return read(content, configuration=_configuration(options, content))


def _configuration(options: Options, content: bytes) -> str | None:
    """A name in the environment concerns files that have configurations, and no plan."""
    if options.configuration is not None or b"mig-configs" not in content:
        return options.configuration
    return os.environ.get(CONFIGURATION_VARIABLE) or None


def _content(name: str) -> bytes:
    try:
        if name == "-":
            return sys.stdin.buffer.read(_LARGEST)
        with Path(name).open("rb") as file:
            return file.read(_LARGEST)
    except OSError as error:
        raise UsageError(
            f"{name} cannot be read: {error.strerror}", remedy="name a readable file with -f"
        ) from None
