"""The folder of a simulated node with an agent."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.agent_home import Home


@pytest.fixture
def home() -> Iterator[Home]:
    """Not pytest's folder: other users have to reach it, and socket paths are short."""
    folder = Path(tempfile.mkdtemp(prefix="na-", dir="/tmp"))
    folder.chmod(0o755)
    place = Home(folder)
    try:
        yield place
    finally:
        place.end_everything()
        shutil.rmtree(folder, ignore_errors=True)
