"""A fleet that is impatient with its daemons."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mps.fleet_rig import FleetRig


@pytest.fixture
def rig() -> Iterator[FleetRig]:
    """Folders and knobs of their own, the programs shared."""
    with FleetRig() as made:
        made.impatient = True
        yield made
