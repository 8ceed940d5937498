"""The node with its MPS daemons and time slices, for commands that do one thing and end.

The modules of MPS take long to import, and are imported only where the document has MPS or time
slices, or an agent left daemons here.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from nodeagent.cli.node import is_throwaway, make_driver, simulation
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.original_settings import FILE_NAME as ORIGINAL_SETTINGS
from nodeagent.gpu.original_settings import OriginalSettings
from nodeagent.plan.desired import MigLayout, PlanDocument, PlanEntry
from nodeagent.plan.shares import Host
from nodeagent.settings import Settings
from nodeagent.structs import Struct

if TYPE_CHECKING:
    from nodeagent.mps.setup import MpsPlaces
    from nodeagent.reconcile.node_controller import NodeController, NodeReader

    ReadableNode: TypeAlias = Driver | NodeReader
    ChangeableNode: TypeAlias = Driver | NodeController

_RECORDS = "mps"  # the folder below run.dir in which daemons have theirs


@asynccontextmanager
async def reading_node(
    options: Namespace, settings: Settings, document: PlanDocument | None
) -> AsyncIterator[tuple[ReadableNode, Host]]:
    """The node, real or simulated, and what of the host bears on the document.

    Time slices are asked for where the document has some, else of GPUs on which they were changed.
    Raises DriverUnavailable, UsageError, and NodeagentError for what an agent left damaged.
    """
    async with _opened(options, settings, document, read_only=True) as (driver, sharing):
        if sharing is None:
            async with driver:
                yield driver, Host()
            return
        from nodeagent.mps.adoption import survey
        from nodeagent.reconcile.node_controller import LastObservation, NodeReader

        found = await survey(sharing.places.run_dir, programs=sharing.places.programs)
        async with NodeReader(driver, found.get, LastObservation()) as node:
            yield node, sharing.host


@asynccontextmanager
async def changing_node(
    options: Namespace, settings: Settings, document: PlanDocument
) -> AsyncIterator[tuple[ChangeableNode, Host]]:
    """The node as `reading_node` gives it, to be changed.

    MPS daemons that are started go on without a supervisor, until an agent takes them over. Those
    that are there are given time to become Ready, also after a command that was cut short.
    """
    async with _opened(options, settings, document) as (driver, sharing):
        if sharing is None:
            async with driver:
                yield driver, Host()
            return
        from nodeagent.mps import setup as mps_setup
        from nodeagent.mps.files.publisher import Publisher
        from nodeagent.reconcile.node_controller import (
            LastObservation,
            NodeController,
            compute_mode_check,
        )

        observation = LastObservation()
        mps, places = settings.mps, sharing.places
        fleet = mps_setup.make_fleet(
            mps,
            places,
            check=compute_mode_check(observation, exclusive=mps.compute_mode == "exclusive"),
            report=lambda _device, _report: None,  # the outcome of the steps has it
            changed=lambda: None,
        )
        publisher = Publisher(run_dir=places.run_dir, cdi_dir=places.cdi_dir)
        controller = NodeController(driver, fleet, publisher, observation)
        async with fleet, controller:
            fleet.retry()
            await fleet.settled()
            try:
                yield controller, sharing.host
            finally:
                if is_throwaway(options):
                    await fleet.keep_only(())


class _Sharing(Struct, frozen=True):
    """What a node with MPS or time slices needs beside its driver."""

    places: MpsPlaces
    host: Host
    original: OriginalSettings


@asynccontextmanager
async def _opened(
    options: Namespace,
    settings: Settings,
    document: PlanDocument | None,
    *,
    read_only: bool = False,
) -> AsyncIterator[tuple[Driver, _Sharing | None]]:
    """The driver, not entered yet; and what MPS and time slices need, None where there are none."""
    entries = document.entries if document else ()
    time_slices = any(entry.time_slice for entry in entries)
    # Shared with the stand-in for nvidia-smi, a process that resets GPUs and sets time slices.
    shared = settings.reset != "never" or time_slices or options.state is not None
    with simulation(options, shared=shared) as simulated:
        directory = simulated.directory if simulated else None
        if any(e.time_slice or e.mps_entries() for e in entries) or _was_shared(
            settings, directory
        ):
            sharing = await asyncio.to_thread(
                _make_sharing, settings, directory, document, read_only=read_only
            )
            original = sharing.original
            driver = make_driver(options, settings, original=original, time_slices=time_slices)
            yield driver, sharing
        else:
            driver = make_driver(options, settings)
            if document is not None:  # without MPS, these matter only to parts of GPU instances
                driver.details = frozenset() if any(map(_divides, entries)) else None
            yield driver, None


def _make_sharing(
    settings: Settings, directory: Path | None, document: PlanDocument | None, *, read_only: bool
) -> _Sharing:
    """Looks up the users that the document names, which may block. `directory` is that of
    a simulated node's daemons.
    """
    from nodeagent.mps import setup as mps_setup

    places = mps_setup.places_of(settings)
    if directory:
        from nodeagent.cli.simulated_node import simulated_places

        places = simulated_places(settings, directory)
    return _Sharing(
        places,
        mps_setup.host_for(settings.mps)(document) if document else Host(),
        OriginalSettings(places.memory, read_only=read_only),
    )


def _divides(entry: PlanEntry) -> bool:
    """Whether the entry asks for parts of GPU instances, such as 1c.3g.40gb."""
    return isinstance(entry.mig, MigLayout) and any("c." in i.profile for i in entry.mig.instances)


def _was_shared(settings: Settings, directory: Path | None) -> bool:
    """Whether an agent or an earlier command left daemons or changed devices here."""
    run_dirs = [settings.run.dir, *([directory / "run"] if directory else [])]
    changed = (directory or settings.state.dir) / ORIGINAL_SETTINGS
    return changed.exists() or any(_has_files(run_dir / _RECORDS) for run_dir in run_dirs)


def _has_files(folder: Path) -> bool:
    try:
        return any(True for _ in folder.iterdir())
    except OSError:
        return False
