"""The node that a command works on: the machine's own GPUs, or simulated ones."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.app import driver
from nodeagent.errors import UsageError
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.original_settings import OriginalSettings
from nodeagent.plan.observed import ObservedNode
from nodeagent.settings import Settings
from nodeagent.structs import Struct

if TYPE_CHECKING:
    from nodeagent.plan.desired import WithClaims
    from nodeagent.simulation import SimulatedNode

_CLAIMS = "claims"  # the folder below state.dir in which claims have their records
# Copied from their modules, which most commands do not import.
_HEALTH, _LAST_GOOD_PLAN = "health.json", "last-good-plan"
SIMULATED_SMI = (sys.executable, "-m", "nodeagent.simulation.nvidia_smi")


class SimulatedGpus(Struct, frozen=True):
    """A simulated node in place of the driver's GPUs. `state`: the file in which other processes
    find it, `directory`: where its MPS daemons have their things.
    """

    node: SimulatedNode
    state: Path | None
    directory: Path


def is_simulated(options: Namespace) -> bool:
    """Whether the command line asks for simulated GPUs."""
    return options.simulate is not None or options.state is not None


def is_throwaway(options: Namespace) -> bool:
    """Whether the node is gone after this command."""
    return is_simulated(options) and options.state is None


def make_driver(
    options: Namespace,
    settings: Settings,
    *,
    original: OriginalSettings | None = None,
    time_slices: bool = False,
) -> Driver:
    """The driver, real or simulated, to be entered."""
    smi = SIMULATED_SMI if is_simulated(options) else None
    return driver.make_driver(
        settings, simulated_smi=smi, original=original, time_slices=time_slices
    )


async def observed_node(options: Namespace, settings: Settings) -> ObservedNode:
    """The GPUs as they are now; raises DriverUnavailable or UsageError."""
    with simulation(options, shared=settings.reset != "never"):
        async with make_driver(options, settings) as gpus:
            return await gpus.observe()


@contextmanager
def simulation(options: Namespace, *, shared: bool) -> Iterator[SimulatedGpus | None]:
    """Simulated GPUs in place of the driver's; None where none are asked for.

    `shared`: the stand-in for nvidia-smi, a process of its own, has to see the same node; without
    a state file given, one is made and thrown away.
    """
    if not is_simulated(options):
        yield None
        return
    if options.simulate is None and options.state is not None and not options.state.exists():
        raise UsageError.of("noStateFile", file=options.state)
    from nodeagent.simulation import simulated

    with _directory(options.state) as directory:
        state = options.state
        if shared:
            state = (state or directory / "node.json").absolute()
        with (
            _known_to_nvidia_smi(state) if state and shared else nullcontext(),
            simulated(options.simulate, state=state) as node,
        ):
            yield SimulatedGpus(node, state, directory)


@contextmanager
def _directory(state: Path | None) -> Iterator[Path]:
    """A directory beside the state file, or, without one, a temporary one."""
    if state is not None:
        from nodeagent.simulation.state_file import directory_beside

        yield directory_beside(state)
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="na-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # daemons and clients of other users have to pass
        yield directory


@contextmanager
def _known_to_nvidia_smi(state: Path) -> Iterator[None]:
    from nodeagent.simulation.state_file import STATE_VARIABLE

    os.environ[STATE_VARIABLE] = str(state)
    try:
        yield
    finally:
        del os.environ[STATE_VARIABLE]


@contextmanager
def writing(options: Namespace, settings: Settings) -> Iterator[None]:
    """Be the only one who changes this node; raises NodeagentError when another program does."""
    if is_throwaway(options):
        yield  # no other program sees this node
        return
    from nodeagent.reconcile.writer_lock import writer_lock

    with writer_lock(lock_file(options, settings.run.dir), state_dir(options, settings)):
        yield


def state_dir(options: Namespace, settings: Settings) -> Path:
    """The folder of an agent on this node for records of claims and original modes."""
    if options.state is None:
        return settings.state.dir
    from nodeagent.simulation.state_file import directory_beside

    return directory_beside(options.state)


def run_dir(options: Namespace, settings: Settings) -> Path:
    """The run directory of the daemons that an agent on this node has with the same settings."""
    if options.state is None:
        return settings.run.dir
    from nodeagent.cli.simulated_node import simulated_run_dir

    return simulated_run_dir(settings, state_dir(options, settings))


def kept_file(options: Namespace, settings: Settings, name: str) -> Path:
    """The path of a file of an agent on this node that survives its restart."""
    if options.state is not None and "dir" not in settings.state.given:
        return Path(f"{options.state.absolute()}.{name}")
    return settings.state.dir / name


def recorded_claims(options: Namespace, settings: Settings) -> WithClaims:
    """A function that adds to a GPU's goal what claims hold there, by the records that an agent
    left when it stopped. Raises NodeagentError. Blocks for a moment.
    """
    folder = state_dir(options, settings) / _CLAIMS
    if is_throwaway(options) or not os.path.isdir(folder):  # noqa: PTH112  # a Path may raise
        return lambda goal, _: goal
    from nodeagent.claims.records import UnservedRecords

    return UnservedRecords.read(folder).with_claims


def as_accepted(
    options: Namespace, settings: Settings, observed: ObservedNode, digest: str
) -> ObservedNode:
    """The GPUs with the numbers that they had when an agent accepted the plan with this digest, or
    as observed if none did: a GPU off the bus moves the numbers of others. Blocks for a moment.
    """
    path = kept_file(options, settings, _LAST_GOOD_PLAN)
    if is_throwaway(options) or not os.path.isfile(path):  # noqa: PTH113  # a Path may raise
        return observed
    from nodeagent.documents.reading import digest_of
    from nodeagent.plan.numbers import numbered, numbers_of
    from nodeagent.reconcile.plan_update import last_good_plan

    kept = last_good_plan(path).read()
    if kept is None or digest_of(kept.plan.text) != digest:
        return observed
    return numbered(observed, numbers_of(observed, kept.numbers))


def as_judged(options: Namespace, settings: Settings, observed: ObservedNode) -> ObservedNode:
    """The GPUs with what an agent found unhealthy in this boot. Blocks for a moment.

    A single command would miss errors that show between samples or in the kernel log.
    """
    path = kept_file(options, settings, _HEALTH)
    if is_throwaway(options) or not os.path.isfile(path):  # noqa: PTH113  # a Path may raise
        return observed
    from nodeagent.cluster.client.presence import runs_as
    from nodeagent.gpu.kernel import boot_id
    from nodeagent.health import fencing
    from nodeagent.health.state_file import health_file
    from nodeagent.views.health_remedies import HealthRemedies

    kept = health_file(path).read()
    if kept is None or kept.boot_id != boot_id():
        return observed
    remedies = HealthRemedies(settings.node_name, runs_as(settings.kubernetes), observed)
    fences = fencing.fences(kept.findings, observed)
    return fencing.as_fenced(observed, fences, remedies.of_finding)


def lock_file(options: Namespace, run_dir: Path) -> Path:
    """The lock of the machine's GPUs, or that of a simulated node beside its state file."""
    from nodeagent.reconcile.writer_lock import FILE_NAME

    if options.state is not None:
        return Path(f"{options.state}.{FILE_NAME}")
    return run_dir / FILE_NAME
