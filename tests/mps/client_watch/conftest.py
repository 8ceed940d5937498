"""A daemon of the simulated programs and its clients, for watching and ending these."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from nodeagent.mps.clients.watch import RunningDaemon
from nodeagent.mps.control import ControlClient
from nodeagent.mps.programs import Programs as MpsPrograms
from nodeagent.mps.shares import DaemonSpec
from nodeagent.plan.shares import WantedMps
from nodeagent.simulation.mps.clients import SimulatedClient
from nodeagent.simulation.mps.versions import VERSIONS
from tests.mps.plans import GPU, spec_of
from tests.simulation.mps.rig import CONTROL, Programs, Rig, programs_of

Start = Callable[..., SimulatedClient]


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(Programs(programs_of("550"), VERSIONS["550"], real=False)) as made:
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


def asking(rig: Rig) -> ControlClient:
    front_end = str(rig.programs.folder / CONTROL)
    programs = MpsPrograms(control=(front_end,), path=rig.environment["PATH"])
    return ControlClient(
        programs, pipe_directory=str(rig.pipes), log_directory=str(rig.logs), deadline=60.0
    )


def start(rig: Rig, plan: WantedMps) -> DaemonSpec:
    rig.start()
    limit = plan.sharing.memory_ceiling(GPU)
    if limit is not None:
        rig.ask(f"set_default_device_pinned_mem_limit 0 {limit}M")
    rig.ask(f"set_default_active_thread_percentage {plan.sharing.thread_ceiling}")
    return spec_of(plan, pipe=str(rig.pipes))


def running(rig: Rig, plan: WantedMps, control: ControlClient, device: str = GPU) -> RunningDaemon:
    server = rig.server()
    pids = map(int, rig.ask(f"get_client_list {server}").split())
    spec = spec_of(plan, device, pipe=str(rig.pipes))
    return RunningDaemon(spec, control, None, tuple((server, pid) for pid in pids))
