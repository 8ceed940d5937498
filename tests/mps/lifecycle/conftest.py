"""A daemon that is Ready, from which most tests begin."""

from __future__ import annotations

import pytest

from nodeagent.mps.lifecycle.model import DaemonPhase
from tests.mps.lifecycle.life import Life


@pytest.fixture
def ready() -> Life:
    """A daemon that is Ready."""
    life = Life()
    life.become_ready()
    assert life.phase() is DaemonPhase.READY
    return life
