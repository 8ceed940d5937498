"""The simulated node in `--state FILE`, as the `simulate` commands act on it."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nodeagent.cli.command_settings import command_settings
from nodeagent.cli.simulated_mps import simulated_run_dir
from nodeagent.errors import UsageError
from nodeagent.mps.files.directories import directories_of
from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.state_file import directory_beside


@contextmanager
def simulated_node(options: Namespace) -> Iterator[SimulatedNode]:
    """The node in the state file; a new one where --simulate names its boards."""
    state = state_file(options)
    if options.simulate is None and not state.exists():
        raise UsageError(
            f"the state file {state} does not exist", remedy="create it with --simulate BOARDS"
        )
    with SimulatedNode(options.simulate, state=state) as node:
        yield node


def state_file(options: Namespace) -> Path:
    """The file that was named; raises UsageError when none was."""
    if options.state is None:
        raise UsageError(
            "this needs a simulated node that outlives the command",
            remedy="name the node's state file with --state FILE",
        )
    return Path(options.state)


def device_on(named: str, node: SimulatedNode) -> str:
    """The device as the simulator knows it; `0:4` is what lies on slice 4 of GPU 0."""
    slot = re.fullmatch(r"(\d+):(\d+)", named)
    if slot is None:
        return named
    gpu, start = int(slot[1]), int(slot[2])
    for instance, compute in node.card(gpu).mig_devices():
        if instance.start <= start < instance.start + instance.size:
            return f"{gpu}/{instance.id}/{compute.id}"
    raise UsageError(
        f"there is no MIG device on slice {start} of GPU {gpu}",
        remedy="nodeagent export with the same --state shows its devices",
    )


def uuid_of(named: str, node: SimulatedNode) -> str:
    """The UUID of a GPU or MIG device in any spelling; raises UsageError."""
    card, instance, compute = node.find(device_on(named, node))
    for gpu_instance, compute_instance in card.mig_devices():
        if (gpu_instance.id, compute_instance.id) == (instance, compute):
            return card.mig_uuid(gpu_instance, compute_instance)
    return card.identity.uuid


def device_named(named: str, options: Namespace) -> str:
    """The UUID of a device of the node in the state file; raises UsageError."""
    with simulated_node(options) as node:
        return uuid_of(named, node)


def pipes_of(device: str, options: Namespace) -> Path:
    """The pipe directory of a device's daemon, below the run.dir that an agent on this node has
    with the same settings; raises NodeagentError where there can be none.
    """
    run_dir = simulated_run_dir(command_settings(options), directory_beside(state_file(options)))
    return Path(directories_of(run_dir, device).pipe)
