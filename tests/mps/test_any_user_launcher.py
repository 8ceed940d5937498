"""Daemons for clients of every user, in the form that the installed program knows."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from nodeagent.mps.launch.child import ChildLauncher
from nodeagent.mps.launch.launcher import StartError
from nodeagent.mps.launch.probing import probe
from nodeagent.mps.processes import CONTROL
from nodeagent.mps.programs import Programs
from nodeagent.simulation.mps.installation import install
from tests.mps.conftest import spec_for
from tests.mps.plans import with_account

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may serve every user")


class Trying:
    """A launcher of an installed version, and how often that was tried out."""

    def __init__(self, folder: Path, version: str) -> None:
        install(folder / "bin", version=version)
        self._scratch = folder / "probes"
        self._programs = Programs(
            control=(str(folder / "bin" / CONTROL),), path=f"{folder}/bin:/usr/bin:/bin"
        )
        self.trials = 0
        self.launcher = ChildLauncher(self._programs, find_flag=self._find_flag)

    async def _find_flag(self) -> str:
        self.trials += 1
        found = await probe(self._programs, scratch=self._scratch, deadline=60)
        return found.multi_user_flag or ""


@as_root
@pytest.mark.parametrize("version", ["555", "580"])
async def test_the_form_that_is_known(open_folder: Path, version: str) -> None:
    """It is tried out once, however many daemons follow."""
    trying = Trying(open_folder, version)
    for number in range(2):
        device = f"GPU-0000000{number}-0000-0000-0000-000000000000"
        spec = with_account(spec_for(open_folder, 0, 0, device=device), any_user=True)
        process = await trying.launcher.launch(spec)
        try:
            line = await asyncio.to_thread(Path(f"/proc/{process.pid}/cmdline").read_bytes)
            assert b"-multiuser-server" in line or b"-M" in line.split(b"\0")
        finally:
            process.kill()
            await process.wait()
    assert trying.trials == 1


@as_root
async def test_a_program_without_any(open_folder: Path) -> None:
    """The lack is reported in words, and the program tried again: it may have been replaced."""
    trying = Trying(open_folder, "550")
    spec = with_account(spec_for(open_folder, 0, 0), any_user=True)
    for _ in range(2):
        with pytest.raises(StartError, match="user"):
            await trying.launcher.launch(spec)
    assert trying.trials == 2


async def test_others_are_started_without_a_trial(open_folder: Path) -> None:
    """Which costs a fifth of a second and two starts."""
    trying = Trying(open_folder, "550")
    process = await trying.launcher.launch(spec_for(open_folder, os.geteuid(), os.getegid()))
    process.kill()
    await process.wait()
    assert trying.trials == 0
