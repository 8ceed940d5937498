"""The node with its MPS daemons and time slices, for commands that do one thing and end.

What this needs takes long to import, so it is done only where MPS or time slices are concerned:
by the document, or because an agent left daemons here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nodeagent.cli.node import is_simulated, make_driver, simulation
from nodeagent.cli.options import Options
from nodeagent.gpu.driver import Driver
from nodeagent.plan.desired import MigLayout, PlanDocument
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.shares import Host
from nodeagent.plan.steps import Destruction, Step
from nodeagent.settings import Settings

if TYPE_CHECKING:
    from nodeagent.mps.setup import MpsPlaces

_MEMORY = "earlier-modes.json"  # what devices were before they were changed
_RECORDS = "mps"  # the folder below run.dir in which daemons have theirs
_PART = re.compile(r"\d+c\.", re.ASCII)  # of a compute instance that is not all of its GPU instance


class SeenNode(Protocol):
    """What commands need of a node that they only look at."""

    async def observe(self) -> ObservedNode: ...


class Node(SeenNode, Protocol):
    """What commands need of a node that they change."""

    async def observe_gpu(self, uuid: str) -> Gpu: ...

    async def read_back(self, uuid: str) -> Gpu: ...

    async def insist_on_idle(self, steps: Sequence[Destruction]) -> None: ...

    async def apply(self, step: Step) -> None: ...


@asynccontextmanager
async def looking_at(
    options: Options,
    settings: Settings,
    document: PlanDocument | None,
) -> AsyncIterator[tuple[SeenNode, Host]]:
    """The node, real or simulated, and what of the host bears on the document.

    Time slices are asked for where the document has some, else of GPUs on which they were changed.
    Raises DriverUnavailable, UsageError, and NodeagentError for what an agent left damaged.
    """
    async with _parts(options, settings, document) as (driver, parts):
        if parts is None:
            async with driver:
                yield driver, Host()
            return
        from nodeagent.execute import node_reader
        from nodeagent.mps import setup as mps_setup
        from nodeagent.mps.fleet import survey

        found = await survey(parts.places.run_dir, programs=parts.places.programs, ask=True)
        memory = mps_setup.make_memory(parts.places, read_only=True)
        daemons = node_reader.SurveyedDaemons(found)
        async with node_reader.NodeReader(
            driver, daemons, memory, node_reader.LastObservation(), time_slices=parts.time_slices
        ) as node:
            yield node, parts.host


@asynccontextmanager
async def changing(
    options: Options, settings: Settings, document: PlanDocument
) -> AsyncIterator[tuple[Node, Host]]:
    """As `looking_at`, to change it.

    MPS daemons that are started go on without a supervisor, until an agent takes them over. Those
    that are there are given the time to be Ready, also where an earlier command was cut short.
    """
    async with _parts(options, settings, document) as (driver, parts):
        if parts is None:
            async with driver:
                yield driver, Host()
            return
        from nodeagent.execute.node_controller import NodeController, compute_mode_check
        from nodeagent.execute.node_reader import LastObservation
        from nodeagent.mps import setup as mps_setup

        observation = LastObservation()
        mps, places = parts.settings.mps, parts.places
        fleet = mps_setup.make_fleet(
            mps,
            places,
            check=compute_mode_check(observation, exclusive=mps.compute_mode == "exclusive"),
            report=lambda _device, _report: None,  # the outcome of the steps has it
            changed=lambda: None,
        )
        memory = mps_setup.make_memory(places)
        publisher = mps_setup.make_publisher(mps, places)
        whole = NodeController(
            driver,
            fleet,
            memory,
            publisher,
            observation,
            time_slices=parts.time_slices,
        )
        async with fleet, whole:
            fleet.retry()
            await fleet.settled()
            try:
                yield whole, parts.host
            finally:
                if parts.throwaway:
                    await fleet.keep_only(())


@dataclass(frozen=True, slots=True)
class _Parts:
    """What MPS and time slices take. `throwaway`: nobody can find the node again afterwards."""

    settings: Settings
    places: MpsPlaces
    host: Host
    throwaway: bool
    time_slices: bool = False


@asynccontextmanager
async def _parts(
    options: Options,
    settings: Settings,
    document: PlanDocument | None,
) -> AsyncIterator[tuple[Driver, _Parts | None]]:
    """The driver, to be entered; and what else it takes, None where nothing is concerned."""
    time_slices = document is not None and _has_time_slices(document)
    # The stand-in for nvidia-smi, a process of its own, resets GPUs and sets time slices.
    shared = settings.reset != "never" or time_slices or options.state is not None
    with simulation(options, shared=shared) as (state, _):
        driver = make_driver(options, settings)
        with _directory(options, state) as directory:
            concerned = document is not None and _asks_for_sharing(document)
            run_dirs = [settings.run.dir, *([directory / "run"] if directory else [])]
            memory = (directory or settings.state.dir) / _MEMORY
            if concerned or memory.exists() or any(map(_has_records, run_dirs)):
                parts = await asyncio.to_thread(_make_parts, options, settings, directory, document)
                yield driver, replace(parts, time_slices=time_slices)
            else:
                if document is not None:  # without MPS, only parts of GPU instances need details
                    driver.read_details(wanted=_divides(document))
                yield driver, None


def _make_parts(
    options: Options, settings: Settings, directory: Path | None, document: PlanDocument | None
) -> _Parts:
    from nodeagent.mps import setup as mps_setup

    return _Parts(
        settings,
        mps_setup.simulated_places(settings, directory)
        if directory
        else mps_setup.places_of(settings),
        mps_setup.host_for(settings.mps)(document) if document else Host(),
        throwaway=is_simulated(options) and options.state is None,
    )


def _asks_for_sharing(document: PlanDocument) -> bool:
    return any(
        entry.mps
        or entry.time_slice
        or (isinstance(entry.mig, MigLayout) and any(i.mps for i in entry.mig.instances))
        for entry in document.entries
    )


def _divides(document: PlanDocument) -> bool:
    """Whether it asks for parts of GPU instances, such as 1c.3g.40gb."""
    return any(
        isinstance(entry.mig, MigLayout)
        and any(_PART.match(i.profile) for i in entry.mig.instances)
        for entry in document.entries
    )


def _has_time_slices(document: PlanDocument) -> bool:
    return any(entry.time_slice for entry in document.entries)


def _has_records(run_dir: Path) -> bool:
    try:
        return any(True for _ in (run_dir / _RECORDS).iterdir())
    except OSError:
        return False


@contextmanager
def _directory(options: Options, state: Path | None) -> Iterator[Path | None]:
    """Where a simulated node's daemons have their things; None for the machine's own GPUs."""
    if not is_simulated(options):
        yield None
        return
    with simulated_directory(state) as directory:
        yield directory


@contextmanager
def simulated_directory(state: Path | None) -> Iterator[Path]:
    """Beside the state file, or, where there is none, thrown away in the end."""
    if state is not None:
        from nodeagent.simulation.mps.installation import directory_beside

        yield directory_beside(state)
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="na-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # daemons and clients of other users have to pass
        yield directory
