"""Publishes what clients need: an env file and a CDI device for each slot.

It is stateless: each time it compares what is there with what should be, and writes what differs.
Programs that run as root (systemd, container runtimes) obey these files, so nothing goes in that
was not checked, and nothing is written where others could write.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.files.cdi import CdiDevice, cdi_specification
from nodeagent.files.open_directory import OpenDirectory, PathRefused
from nodeagent.mps.files.client_files import (
    CDI_VERSION,
    FILE_NAME,
    KIND,
    SUFFIX,
    env_file,
    file_name,
    slot_device,
)
from nodeagent.mps.shares import DaemonSpec, client_environment
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import Struct

ENV_DIRECTORY = "env"

Files = Mapping[str, bytes]  # contents by name


class Publisher(Struct, frozen=True, kw_only=True):
    """The env files in `<run_dir>/mps/<device>/env/` and the CDI specification in `cdi_dir`."""

    run_dir: Path
    cdi_dir: Path

    def publish(self, daemons: Iterable[DaemonSpec]) -> tuple[Problem, ...]:
        """Make env files and CDI specification exactly these; returns the problems met.

        A slot whose values cannot be quoted safely is in neither. Blocks on the file system.
        """
        problems: list[Problem] = []
        env_files: dict[str, Files] = {}
        slots: list[CdiDevice] = []
        for spec in sorted(daemons, key=lambda spec: spec.device):
            with _noted(problems, spec.device):
                # All slots of a device or none: a part of them would puzzle who looks for the rest.
                devices = [slot_device(spec, slot) for slot in spec.wanted.sharing.slots]
                env_files[spec.device] = {
                    file_name(slot.name): env_file(client_environment(spec, slot))
                    for slot in spec.wanted.sharing.slots
                }
                slots += devices
        # An unusable directory is no problem as long as nothing has to be published in it.
        if env_files or os.path.lexists(self.run_dir / "mps"):
            with _noted(problems):
                self._publish_env_files(env_files, problems)
        if slots or os.path.lexists(self.cdi_dir / FILE_NAME):
            cdi = {FILE_NAME: cdi_specification(CDI_VERSION, KIND, slots)} if slots else {}
            with _noted(problems), self._opened(self.cdi_dir, make=bool(cdi)) as directory:
                _publish(directory, cdi, (FILE_NAME,), problems)
        return tuple(problems)

    def _publish_env_files(self, files: Mapping[str, Files], problems: list[Problem]) -> None:
        """Write each device's env files; remove those of other devices, and their directories."""
        make = bool(files)
        with self._opened(self.run_dir, make=make) as run, run.child("mps", make=make) as top:
            for device in sorted({*files, *top.directories()}):
                wanted, before = files.get(device, {}), len(problems)
                if not wanted and not os.path.lexists(top.path / device / ENV_DIRECTORY):
                    continue
                with _noted(problems, device), top.child(device, make=bool(wanted)) as below:
                    with below.child(ENV_DIRECTORY, make=bool(wanted)) as directory:
                        _publish(directory, wanted, directory.names(), problems, device)
                    if not wanted and len(problems) == before:
                        below.remove_child(ENV_DIRECTORY)

    @staticmethod
    def _opened(path: Path, *, make: bool) -> AbstractContextManager[OpenDirectory]:
        return OpenDirectory.opened(path, make=make, use="mpsFiles")


def _publish(
    directory: OpenDirectory,
    files: Files,
    existing: Iterable[str],
    problems: list[Problem],
    device: str = "",
) -> None:
    """Write these files, and remove those of the agent's that are `existing` besides."""
    for name in (*files, *(name for name in existing if name not in files)):
        with _noted(problems, device):
            if name in files:
                directory.put(name, files[name])
            elif name == FILE_NAME or name.removesuffix(".new").endswith(SUFFIX):
                directory.remove(name)
            else:
                raise PathRefused.of("foreignFile", path=directory.path / name)


@contextmanager
def _noted(problems: list[Problem], device: str = "") -> Iterator[None]:
    """Adds a problem when something cannot be published."""
    try:
        yield
    except (NodeagentError, ValueError) as error:
        why, remedy = str(error), ""
        if isinstance(error, NodeagentError):
            why, remedy = error.message, error.remedy
        problems.append(
            Problem.of(Code.MPS, "notPublished", gpu=device, of=device, why=why, remedy=remedy)
        )
