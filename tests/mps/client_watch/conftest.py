"""A daemon of the simulated programs, and clients of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from nodeagent.simulation.mps.clients import SimulatedClient
from tests.mps.simulated_daemon import installed_programs
from tests.simulation.mps.rig import Programs, Rig

Start = Callable[..., SimulatedClient]


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    """The simulated ones."""
    with installed_programs() as found:
        yield found


@pytest.fixture
def rig(programs: Programs) -> Iterator[Rig]:
    """A daemon's folders; nothing runs yet."""
    with Rig(programs) as made:
        yield made


@pytest.fixture
def start_client(rig: Rig) -> Iterator[Start]:
    """Starts clients with an environment of theirs; they are accepted."""
    with ExitStack() as stack:

        def begin(uid: int | None = None, **environment: str) -> SimulatedClient:
            client = SimulatedClient(rig.pipes, uid=uid, environment=environment)
            stack.enter_context(client).wait_until_accepted()
            return client

        yield begin
