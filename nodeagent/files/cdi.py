"""Specifications of the Container Device Interface: devices, and what each changes in a container
(SPEC.md of the CDI project).
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct, field, json

from nodeagent.structs import read_in_threads

_Path = Annotated[str, Meta(pattern=r"\A/[^\x00-\x1f]*\Z", max_length=4096)]
_Variable = Annotated[str, Meta(pattern=r"\A[^=\x00]+=[^\x00]*\Z")]
_Number = Annotated[int, Meta(ge=0, lt=2**32)]


class DeviceNode(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A device file; what is left out, the runtime reads from the host's."""

    path: _Path
    host_path: _Path | None = None
    type: str | None = None
    major: _Number | None = None
    minor: _Number | None = None
    file_mode: _Number | None = None
    permissions: str | None = None
    uid: _Number | None = None
    gid: _Number | None = None


class Mount(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A file or directory of the host."""

    host_path: _Path
    container_path: _Path
    options: tuple[str, ...] = ()
    type: str | None = None


class Hook(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A program of the host that the runtime starts around a container's start."""

    hook_name: Literal[
        "prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"
    ]
    path: _Path
    args: tuple[str, ...] = ()
    env: tuple[_Variable, ...] = ()
    timeout: int | None = None


@read_in_threads
class Edits(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What changes of a container."""

    env: tuple[_Variable, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    additional_gids: tuple[_Number, ...] = field(name="additionalGids", default=())


class CdiDevice(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a container asks for by `kind=name`."""

    name: str
    container_edits: Edits


class _Specification(Struct, omit_defaults=True, rename="camel"):
    cdi_version: str
    kind: str
    devices: Sequence[CdiDevice]
    container_edits: Edits | None = None


def cdi_specification(
    version: str, kind: str, devices: Sequence[CdiDevice], edits: Edits | None = None
) -> bytes:
    """The specification of these devices, of which there must be one at least; `edits` are made
    whichever a container asks for.
    """
    specification = _Specification(version, kind, devices, edits)
    return json.format(json.encode(specification), indent=2) + b"\n"
