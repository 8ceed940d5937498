"""The env file and the CDI device of each slot, as text. Pure.

systemd's EnvironmentFile=, `docker run --env-file` and a shell's `.` differ in quotes, escapes and
comments. They agree on KEY=VALUE lines whose values need none of these, so nothing else is written.

A container gets a slot of a daemon by CDI, not the GPU: that comes from NVIDIA's own CDI devices,
the device plugin or `--gpus`.
"""

import re
from collections.abc import Mapping

from nodeagent.errors import NodeagentError
from nodeagent.files.cdi import CdiDevice, Edits, Mount
from nodeagent.mps.shares import SHM, DaemonSpec, client_environment
from nodeagent.plan.shares import Slot

SUFFIX = ".env"
KIND = "nodeagent.io/mps"
CDI_VERSION = "0.5.0"  # Podman 4.3 reads none newer, nor what came later, such as annotations
FILE_NAME = "nodeagent.io-mps.json"

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_PLAIN = re.compile(r"[A-Za-z0-9_/.,:=@%+-]+")  # neither shell, systemd nor Docker touches these
_SLOT_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,98}[A-Za-z0-9])?")
# Starts and ends with a letter or digit, as CDI's specification has it.
_DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_MOUNT_OPTIONS = ("nosuid", "nodev", "noexec", "bind")  # nothing in it is run or is a device


class NotPlain(NodeagentError):
    """A name or value would have to be quoted, which not every reader understands alike."""


def file_name(slot: str) -> str:
    """The name of a slot's env file. Raises NotPlain where the slot's name is no file name."""
    if not _SLOT_NAME.fullmatch(slot):
        raise NotPlain.of("slotName", slot=slot)
    return f"{slot}{SUFFIX}"


def env_file(environment: Mapping[str, str]) -> bytes:
    """The content of an env file: a line for each variable, sorted by name. Raises NotPlain."""
    lines = []
    for name, value in sorted(environment.items()):
        if not _VARIABLE.fullmatch(name):
            raise NotPlain(f"{name!r} is no name of a variable")
        if not is_plain(value):
            raise NotPlain.of("envValue", name=name, value=value)
        lines.append(f"{name}={value}\n")
    return "".join(lines).encode("ascii")


def is_plain(value: str) -> bool:
    """Whether it can stand in an env file, or in a mount, just as it is."""
    return _PLAIN.fullmatch(value) is not None


def slot_device(spec: DaemonSpec, slot: Slot) -> CdiDevice:
    """One slot as a CDI device. Raises NotPlain, and ValueError for what is no name, or as
    `client_environment` does.
    """
    environment = client_environment(spec, slot)
    for what, path in (("pipe", spec.pipe_directory), ("shm", spec.shm)):
        if not _is_mountable(path):
            raise NotPlain.of("mountPath", what=what, path=path)
    name = f"{spec.device}-{slot.name}"
    if not _DEVICE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a CDI device")
    # Read-only still lets a client connect. It keeps one, which has the same user as the daemon,
    # from putting something else in the place of its sockets.
    pipes = Mount(spec.pipe_directory, spec.pipe_directory, ("ro", *_MOUNT_OPTIONS))
    variables = tuple(f"{variable}={value}" for variable, value in sorted(environment.items()))
    edits = Edits(env=variables, mounts=(pipes, Mount(spec.shm, SHM, ("rw", *_MOUNT_OPTIONS))))
    return CdiDevice(name=name, container_edits=edits)


def _is_mountable(path: str) -> bool:
    return is_plain(path) and path.startswith("/") and ".." not in path.split("/")
