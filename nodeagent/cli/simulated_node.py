"""The simulated node in `--state FILE`, as the `simulate` commands act on it, and where its MPS
daemons have their things.
"""

import re
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nodeagent.cli.command_settings import command_settings
from nodeagent.errors import UsageError
from nodeagent.files.open_directory import PathRefused
from nodeagent.gpu.original_settings import FILE_NAME
from nodeagent.mps.files.directories import pipe_directory
from nodeagent.mps.programs import Programs
from nodeagent.mps.setup import MpsPlaces, places_of
from nodeagent.settings import Settings
from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.mps.installation import install, programs_in
from nodeagent.simulation.state_file import directory_beside

_VERSION = "580"  # the newest branch of which most is known
_ANY_DEVICE = "MIG-00000000-0000-0000-0000-000000000000"


def simulated_places(settings: Settings, directory: Path) -> MpsPlaces:
    """The places in `directory`. The real node's are touched only where settings name them.
    A run.dir too deep for sockets is not taken. Installs the stand-ins where they are needed.
    """
    given = places_of(settings)
    programs = given.programs
    if "control" not in settings.mps.given:
        stand_ins = programs_in(directory)
        if not stand_ins.exists():
            install(stand_ins, version=_VERSION)
        programs = Programs(path=f"{stand_ins}:{settings.mps.path}", stand_ins=True)
    return MpsPlaces(
        run_dir=simulated_run_dir(settings, directory),
        cdi_dir=given.cdi_dir if "dir" in settings.cdi.given else directory / "cdi",
        memory=directory / FILE_NAME,
        programs=programs,
        simulated=True,
    )


def simulated_run_dir(settings: Settings, directory: Path) -> Path:
    """The run directory of a simulated node's daemons, whose other things are in `directory`."""
    given = "dir" in settings.run.given and _has_room(settings.run.dir)
    return settings.run.dir.absolute() if given else directory / "run"


def _has_room(run_dir: Path) -> bool:
    """Whether sockets of any device's daemon have paths there that are not too long."""
    try:
        pipe_directory(run_dir.absolute(), _ANY_DEVICE)
    except PathRefused:
        return False
    return True


@contextmanager
def simulated_node(options: Namespace) -> Iterator[SimulatedNode]:
    """The node in the state file; a new one where --simulate names its boards."""
    state = state_file(options)
    if options.simulate is None and not state.exists():
        raise UsageError.of("noStateFile", file=state)
    with SimulatedNode(options.simulate, state=state) as node:
        yield node


def state_file(options: Namespace) -> Path:
    """The file that was named; raises UsageError when none was."""
    if options.state is None:
        raise UsageError.of("throwaway")
    return Path(options.state)


def device_on(named: str, node: SimulatedNode) -> str:
    """The device as the simulator knows it; `0:4` is what lies on slice 4 of GPU 0."""
    slot = re.fullmatch(r"(\d+):(\d+)", named)
    if slot is None:
        return named
    gpu, start = int(slot[1]), int(slot[2])
    for instance, compute in node.card(gpu).mig_devices():
        if instance.start <= start < instance.start + instance.size:
            return f"{gpu}/{instance.id}/{compute.id}"
    raise UsageError.of("noMigDevice", start=start, gpu=gpu)


def uuid_of(named: str, node: SimulatedNode) -> str:
    """The UUID of a GPU or MIG device in any spelling; raises UsageError."""
    card, instance, compute = node.find(device_on(named, node))
    for gpu_instance, compute_instance in card.mig_devices():
        if (gpu_instance.id, compute_instance.id) == (instance, compute):
            return card.mig_uuid(gpu_instance, compute_instance)
    return card.identity.uuid


def device_named(named: str, options: Namespace) -> str:
    """The UUID of a device of the node in the state file; raises UsageError."""
    with simulated_node(options) as node:
        return uuid_of(named, node)


def pipes_of(device: str, options: Namespace) -> Path:
    """The pipe directory of a device's daemon, below the run.dir that an agent on this node has
    with the same settings; raises NodeagentError where there can be none.
    """
    return Path(pipe_directory(run_dir_of(options), device))


def run_dir_of(options: Namespace) -> Path:
    """The run.dir of the node in the state file."""
    directory = directory_beside(state_file(options))
    return simulated_run_dir(command_settings(options), directory.absolute())
