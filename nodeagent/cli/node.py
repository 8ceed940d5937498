"""The node that a command works on: the machine's own GPUs, or simulated ones."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.cli.options import Options
from nodeagent.errors import UsageError
from nodeagent.execute.writer_lock import FILE_NAME, writer_lock
from nodeagent.gpu.capability_files import UsageProbe
from nodeagent.gpu.driver import Driver
from nodeagent.plan.observed import ObservedNode
from nodeagent.settings import Settings

if TYPE_CHECKING:
    from nodeagent.cluster.kubelet.device_users import KubeletUsage
    from nodeagent.simulation import SimulatedNode

SIMULATED_SMI = (sys.executable, "-m", "nodeagent.simulation.nvidia_smi")


def is_simulated(options: Options) -> bool:
    """Whether the command line asks for simulated GPUs."""
    return options.simulate is not None or options.state is not None


def make_driver(options: Options, settings: Settings) -> Driver:
    """The driver, real or simulated, to be entered."""
    simulated = is_simulated(options)
    return Driver(
        observe_deadline=settings.driver.observe_deadline,
        step_deadline=settings.driver.step_deadline,
        usage=None if simulated else UsageProbe(),
        allocations=_kubelet(settings, simulated=simulated),
        nvidia_smi=SIMULATED_SMI if simulated else settings.nvidia_smi,
    )


def _kubelet(settings: Settings, *, simulated: bool) -> KubeletUsage | None:
    if settings.kubelet.use == "never" or (simulated and settings.kubelet.use == "auto"):
        return None  # as it would say itself; but most commands can do without importing it
    from nodeagent.cluster.client.presence import is_in_cluster
    from nodeagent.cluster.kubelet.device_users import kubelet_users

    in_cluster = is_in_cluster(settings.kubernetes)
    return kubelet_users(settings.kubelet, in_cluster=in_cluster, simulated=simulated)


@asynccontextmanager
async def opened(options: Options, settings: Settings) -> AsyncIterator[Driver]:
    """The driver, real or simulated; raises DriverUnavailable or UsageError."""
    with simulation(options, shared=settings.reset != "never"):
        async with make_driver(options, settings) as driver:
            yield driver


async def observed_node(options: Options, settings: Settings) -> ObservedNode:
    """The node as it is now."""
    async with opened(options, settings) as driver:
        return await driver.observe()


@contextmanager
def simulation(
    options: Options, *, shared: bool
) -> Iterator[tuple[Path | None, SimulatedNode | None]]:
    """Simulated GPUs in place of the driver's, where they are asked for; gives their state file and
    the node, None where there is none.

    `shared`: the stand-in for nvidia-smi, a process of its own, has to see the same node; without
    a state file given, one is made and thrown away.
    """
    if not is_simulated(options):
        yield None, None
        return
    if options.simulate is None and options.state is not None and not options.state.exists():
        raise UsageError(
            f"the state file {options.state} does not exist",
            remedy="--simulate BOARDS would make it",
        )
    from nodeagent.simulation import simulated

    with (
        _state_file(options.state) if shared else nullcontext(options.state) as state,
        simulated(options.simulate, state=state) as node,
    ):
        yield state, node


@contextmanager
def _state_file(given: Path | None) -> Iterator[Path]:
    """The file in which the node lies, known to the stand-in for nvidia-smi."""
    import tempfile

    from nodeagent.simulation.nvidia_smi import STATE_VARIABLE

    with tempfile.TemporaryDirectory(prefix="nodeagent-") as directory:
        state = given.absolute() if given else Path(directory) / "node.json"
        os.environ[STATE_VARIABLE] = str(state)
        try:
            yield state
        finally:
            del os.environ[STATE_VARIABLE]


@contextmanager
def writing(options: Options, settings: Settings) -> Iterator[None]:
    """Be the only one who changes this node; raises NodeagentError when another program does."""
    if is_simulated(options) and options.state is None:
        yield  # no other program sees this node
        return
    file = lock_file(options, settings.run.dir)
    with writer_lock(file, _state_directory(options, settings)):
        yield


def _state_directory(options: Options, settings: Settings) -> Path:
    """Where the state is, the other part of the lock."""
    if options.state is None:
        return settings.state.dir
    from nodeagent.simulation.mps.installation import directory_beside

    return directory_beside(options.state)


def lock_file(options: Options, run_dir: Path) -> Path:
    """The lock of the machine's GPUs, or that of a simulated node beside its state file."""
    if options.state is not None:
        return options.state.with_name(f"{options.state.name}.{FILE_NAME}")
    return run_dir / FILE_NAME
