"""What the tests of faults do with a rig: clients that were taken, knobs turned before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nodeagent.simulation.mps.clients import SimulatedClient
from tests.mps.fleet_rig import US, FleetRig


@contextmanager
def served(rig: FleetRig, uid: int = US) -> Iterator[SimulatedClient]:
    """A client that its server has taken."""
    with rig.client(uid=uid) as client:
        client.wait_until_accepted()
        yield client


def prepared(rig: FleetRig, knob: str, value: object = True) -> None:
    """Turned before the daemon is there."""
    rig.knobs().turn(knob, value)
