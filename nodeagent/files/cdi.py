"""Specifications of the Container Device Interface: devices, and what each changes in a container.

They have version 0.6.0, the first with annotations; newer runtimes read it too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

VERSION = "0.6.0"

# Starts and ends with a letter or digit, as the specification has it.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_SAFE = ("nosuid", "nodev", "noexec")

Json = dict[str, object]


def cdi_device(
    name: str,
    *,
    environment: Mapping[str, str],
    mounts: Sequence[Json] = (),
    annotations: Mapping[str, str],
) -> Json:
    """A device, with the variables and mounts that it adds to a container; runtimes ignore
    annotations. Raises ValueError for what is no name.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a CDI device")
    variables = [f"{variable}={value}" for variable, value in sorted(environment.items())]
    edits = {"env": variables, "mounts": list(mounts)}
    return {"name": name, "annotations": annotations, "containerEdits": edits}


def mount(host: str, container: str, *, writable: bool) -> Json:
    """A directory of the host at a place in the container; nothing in it is run or is a device."""
    options = ["rw" if writable else "ro", *_SAFE, "bind"]
    return {"hostPath": host, "containerPath": container, "options": options}


def cdi_specification(kind: str, devices: Sequence[Json]) -> bytes:
    """The specification of these devices, of which there must be one at least; a container asks
    for one by `kind=name`.
    """
    document = {"cdiVersion": VERSION, "kind": kind, "devices": devices}
    return json.dumps(document, indent=2).encode("ascii") + b"\n"
