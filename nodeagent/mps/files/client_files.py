"""The env file and the CDI device of each slot, as text. Pure.

systemd's EnvironmentFile=, `docker run --env-file` and a shell's `.` differ in quotes, escapes and
comments. They agree on KEY=VALUE lines whose values need none of these, so nothing else is written.

The CDI specification has version 0.6.0, the first with annotations; newer runtimes read it too. A
container gets a slot of a daemon by it, not the GPU: that comes from NVIDIA's own CDI devices, the
device plugin or `--gpus`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from nodeagent.errors import NodeagentError
from nodeagent.mps.shares import DaemonSpec, client_environment
from nodeagent.plan.shares import MIB, Slot, percentage_text

SUFFIX = ".env"

_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_PLAIN = re.compile(r"[A-Za-z0-9_/.,:=@%+-]+")  # neither shell, systemd nor Docker touches these
_SLOT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,98}[A-Za-z0-9])?")


class NotPlain(NodeagentError):
    """A name or value would have to be quoted, which not every reader understands alike."""


def file_name(slot: str) -> str:
    """Of a slot's file. Raises NotPlain for a slot whose name makes none."""
    if not _SLOT.fullmatch(slot):
        raise NotPlain(
            f"the slot {slot!r} makes no file name",
            remedy="name shares with small letters, digits and -",
        )
    return f"{slot}{SUFFIX}"


def env_file(environment: Mapping[str, str]) -> bytes:
    """The file, a line for each variable, in order of their names. Raises NotPlain."""
    lines = []
    for name, value in sorted(environment.items()):
        if not _NAME.fullmatch(name):
            raise NotPlain(f"{name!r} is no name of a variable")
        if not is_plain(value):
            raise NotPlain(
                f"{name} would be {value!r}, which not every reader of env files reads alike",
                remedy="use letters, digits, -, _, . and / in run.dir",
            )
        lines.append(f"{name}={value}\n")
    return "".join(lines).encode("ascii")


def is_plain(value: str) -> bool:
    """Whether it can stand in an env file, or in a mount, just as it is."""
    return _PLAIN.fullmatch(value) is not None


VERSION = "0.6.0"
KIND = "nodeagent.io/mps"
FILE_NAME = "nodeagent.io-mps.json"
SHM = "/dev/shm"  # noqa: S108  # where CUDA looks for the memory that it shares with the server

# Starts and ends with a letter or digit, as the specification has it.
_DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_SAFE = ("nosuid", "nodev", "noexec")

Json = dict[str, object]


class NotForContainers(NodeagentError):
    """A slot cannot be given to a container."""


def device_name(device: str, slot: Slot) -> str:
    """What a container asks for after `nodeagent.io/mps=`. Raises NotForContainers."""
    name = f"{device}-{slot.name}"
    if not _DEVICE_NAME.fullmatch(name):
        raise NotForContainers(
            f"{name!r} is no name of a CDI device",
            remedy="name shares with small letters, digits and -",
        )
    return name


def cdi_device(spec: DaemonSpec, slot: Slot, *, shm: str) -> Json:
    """One slot; `shm` is the directory that daemon and clients share as /dev/shm.

    Raises NotForContainers, and ValueError as `client_environment` does.
    """
    environment = client_environment(spec, slot)
    for what, path in (("pipe", spec.pipe_directory), ("shm", shm)):
        if not (is_plain(path) and path.startswith("/")) or ".." in path.split("/"):
            raise NotForContainers(
                f"the {what} directory {path!r} cannot be mounted into containers",
                remedy="use letters, digits, -, _, . and / in run.dir",
            )
    return {
        "name": device_name(spec.device, slot),
        "annotations": _annotations(spec, slot),
        "containerEdits": {
            "env": [f"{name}={value}" for name, value in sorted(environment.items())],
            "mounts": [
                # Read-only still lets a client connect. It keeps one, which has the same user as
                # the daemon, from putting something else in the place of its sockets.
                _mount(spec.pipe_directory, spec.pipe_directory, "ro"),
                _mount(shm, SHM, "rw"),
            ],
        },
    }


def cdi_file(devices: list[Json]) -> bytes:
    """The specification of these devices, of which there must be one at least."""
    document = {"cdiVersion": VERSION, "kind": KIND, "devices": devices}
    return json.dumps(document, indent=2).encode("ascii") + b"\n"


def _mount(host: str, container: str, access: str) -> Json:
    return {"hostPath": host, "containerPath": container, "options": [access, *_SAFE, "bind"]}


def _annotations(spec: DaemonSpec, slot: Slot) -> Mapping[str, str]:
    """For choosing among slots; runtimes ignore them."""
    share = slot.share
    found = {
        "nodeagent.io/device": spec.device,
        "nodeagent.io/share": share.name,
        "nodeagent.io/user": "any" if spec.multi_user else str(spec.uid),
    }
    if share.memory is not None:
        found["nodeagent.io/memory-limit"] = str(share.memory * MIB)  # bytes
    if share.threads is not None:
        found["nodeagent.io/threads"] = percentage_text(share.threads)  # percent
    return found
