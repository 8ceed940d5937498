"""What tests of claims have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.simulation import SimulatedNode, simulated
from tests.claims.machine import Home


@pytest.fixture
def node() -> Iterator[SimulatedNode]:
    """Two cards that switch MIG at once."""
    with simulated("h100-80gb:2") as node:
        yield node


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A machine on which nothing was claimed yet."""
    return Home(tmp_path)
