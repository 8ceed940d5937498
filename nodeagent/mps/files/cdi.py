"""The CDI specification: each slot as a device that a container can be given.

Pure. Made for version 0.6.0 of the Container Device Interface, the first with annotations; newer
runtimes read it too. What a container gets by it is a slot of a daemon, not the GPU: that is given
by whoever gives GPUs (NVIDIA's own CDI devices, the device plugin, `--gpus`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from nodeagent.errors import NodeagentError
from nodeagent.mps.files.env_files import is_plain
from nodeagent.mps.shares import DaemonSpec, client_environment
from nodeagent.plan.shares import MIB, Slot, percentage_text

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
    """For whoever chooses among slots; runtimes do not look at them."""
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
