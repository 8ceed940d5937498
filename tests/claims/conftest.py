"""What tests of claims have in common."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.claims.machine import Home
from tests.reconcile.controller_rig import NodeRig

_IN_MEMORY = Path("/dev/shm")  # a folder of its own is made there


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where the machine has that: records are synced to the disk at each write."""
    if not os.access(_IN_MEMORY, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(prefix="nodeagent-test-", dir=_IN_MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def home(folder: Path) -> Home:
    return Home(folder)


@pytest.fixture
def machine() -> Iterator[NodeRig]:
    """Its daemons, directories and processes; all of them end with the test."""
    with NodeRig() as made:
        yield made
