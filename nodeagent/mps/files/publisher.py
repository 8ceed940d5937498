"""Publishes what clients need: an env file and a CDI device for each slot.

It keeps nothing in mind: each time it looks at what is there, makes that what it should be, and
leaves alone what already is. Both are instructions to programs of root's (systemd, container
runtimes), so nothing goes in that was not checked, and nothing is written where others could write.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.mps.files.client_files import (
    FILE_NAME,
    SUFFIX,
    Json,
    cdi_device,
    cdi_file,
    env_file,
    file_name,
)
from nodeagent.mps.files.published import FileRefused, PublicDirectory
from nodeagent.mps.shares import DaemonSpec, client_environment
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import WantedMps

ENV_DIRECTORY = "env"

Shared = Mapping[str, tuple[DaemonSpec, WantedMps]]  # by device UUID


class Publisher:
    """The env files in `<run_dir>/mps/<device>/env/` and the CDI specification in `cdi_dir`.

    `shm` says what a container of a daemon must have as /dev/shm.
    """

    def __init__(self, *, run_dir: Path, cdi_dir: Path, shm: Callable[[DaemonSpec], Path]) -> None:
        self._run_dir = run_dir
        self._cdi_dir = cdi_dir
        self._shm = shm

    def publish(self, shared: Shared) -> tuple[Problem, ...]:
        """Make env files and CDI specification exactly these; what could not be done, and why.

        A slot that could not be said safely is left out of both. Blocks on the file system.
        """
        problems: list[Problem] = []
        files: dict[str, dict[str, bytes]] = {}
        devices: list[Json] = []
        for device, (spec, wanted) in sorted(shared.items()):
            try:
                files[device], slots = self._of_device(device, spec, wanted)
                devices += slots
            except (NodeagentError, ValueError) as error:
                problems.append(_problem(device, error))
        problems += self._publish_env_files(files)
        problems += self._publish_cdi(devices)
        return tuple(problems)

    def _of_device(
        self, device: str, spec: DaemonSpec, wanted: WantedMps
    ) -> tuple[dict[str, bytes], list[Json]]:
        """All slots of a device or none: some without others would only puzzle."""
        if spec.device != device:
            raise ValueError(f"the daemon is that of {spec.device!r}")
        shm = str(self._shm(spec))
        slots = wanted.sharing.slots
        files = {file_name(s.name): env_file(client_environment(spec, s)) for s in slots}
        return files, [cdi_device(spec, slot, shm=shm) for slot in slots]

    # --- env files ------------------------------------------------------------------------------

    def _publish_env_files(self, files: Mapping[str, Mapping[str, bytes]]) -> Iterator[Problem]:
        """By device and file name; those of other devices are removed."""
        if not files and not os.path.lexists(self._run_dir / "mps"):
            return  # so a directory where nothing could be published does not matter yet
        with ExitStack() as stack:
            try:
                run = stack.enter_context(PublicDirectory.opened(self._run_dir, make=bool(files)))
                top = run and stack.enter_context(run.child("mps", make=bool(files)))
                if top is None:
                    return
                devices = sorted({*files, *top.directories()})
            except FileRefused as error:
                yield _problem("", error)
                return
            for device in devices:
                wanted = files.get(device, {})
                try:
                    yield from _publish_device(top, device, wanted)
                except FileRefused as error:
                    yield _problem(device, error)

    # --- CDI ------------------------------------------------------------------------------------

    def _publish_cdi(self, devices: list[Json]) -> Iterator[Problem]:
        if not devices and not os.path.lexists(self._cdi_dir / FILE_NAME):
            return
        try:
            with PublicDirectory.opened(self._cdi_dir, make=bool(devices)) as directory:
                if directory is None:
                    return
                if devices:
                    directory.put(FILE_NAME, cdi_file(devices))
                else:
                    directory.remove(FILE_NAME)
        except FileRefused as error:
            yield _problem("", error)


def _publish_device(
    top: PublicDirectory, device: str, files: Mapping[str, bytes]
) -> Iterator[Problem]:
    """Exactly these env files of one device; none, and their directory goes too."""
    with ExitStack() as stack:
        below = stack.enter_context(top.child(device, make=bool(files)))
        found = below and stack.enter_context(below.child(ENV_DIRECTORY, make=bool(files)))
        if below is None or found is None:
            return
        refused = False
        for name in (*files, *(other for other in found.names() if other not in files)):
            try:
                if name in files:
                    found.put(name, files[name])
                else:
                    _take_away(found, name)
            except FileRefused as error:
                refused = True
                yield _problem(device, error)
        if not files and not refused:
            below.remove_child(ENV_DIRECTORY)


def _take_away(directory: PublicDirectory, name: str) -> None:
    if not name.removesuffix(".new").endswith(SUFFIX):
        raise FileRefused(
            f"{directory.path / name} is none of the agent's files",
            remedy="see who made it, and remove it",
        )
    directory.remove(name)


def _problem(device: str, error: NodeagentError | ValueError) -> Problem:
    where = f"of {device} " if device else ""
    return Problem(
        Code.MPS,
        f"the files for MPS clients {where}cannot be published: "
        f"{error.message if isinstance(error, NodeagentError) else error}",
        error.remedy if isinstance(error, NodeagentError) else "",
        gpu=device,
    )
