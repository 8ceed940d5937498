"""The C functions by theme. Importing this package declares them all."""

from nodeagent.simulation.functions import (
    compute_instances,
    devices,
    events,
    gpu_instances,
    mig_devices,
    mig_mode,
    readings,
    settings,
    system,
    topology,
    users,
)
from nodeagent.simulation.functions.registry import FUNCTIONS, documented_errors

__all__ = [
    "FUNCTIONS",
    "compute_instances",
    "devices",
    "documented_errors",
    "events",
    "gpu_instances",
    "mig_devices",
    "mig_mode",
    "readings",
    "settings",
    "system",
    "topology",
    "users",
]
