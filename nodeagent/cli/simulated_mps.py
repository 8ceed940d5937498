"""Where the MPS daemons of a simulated node have their things, and which programs they run."""

from __future__ import annotations

from pathlib import Path

from nodeagent.files.open_directory import PathRefused
from nodeagent.gpu.original_settings import FILE_NAME
from nodeagent.mps.files.directories import directories_of
from nodeagent.mps.programs import Programs
from nodeagent.mps.setup import MpsPlaces, places_of
from nodeagent.settings import Settings
from nodeagent.simulation.mps.installation import install, programs_in

_VERSION = "580"  # the newest branch of which most is known
_LONGEST_DEVICE = "MIG-00000000-0000-0000-0000-000000000000"


def simulated_places(settings: Settings, directory: Path) -> MpsPlaces:
    """Those in `directory`: the real node's are never touched, unless the settings say so in words.
    A run.dir too deep for sockets is not taken. Installs the stand-ins where they are needed.
    """
    given = places_of(settings)
    programs = given.programs
    if "control" not in settings.mps.given:
        stand_ins = programs_in(directory)
        if not stand_ins.exists():
            install(stand_ins, version=_VERSION)
        programs = Programs(path=f"{stand_ins}:{settings.mps.path}")
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
        directories_of(run_dir.absolute(), _LONGEST_DEVICE)
    except PathRefused:
        return False
    return True
