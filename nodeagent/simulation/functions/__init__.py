"""The C functions by theme. Importing this package declares them all."""

from nodeagent.simulation.functions import (
    compute_instances,
    devices,
    events,
    gpm,
    gpu_instances,
    links,
    memory_errors,
    mig_devices,
    readings,
    sensors,
    system,
)
from nodeagent.simulation.functions.registry import FUNCTIONS, documented_errors

__all__ = ["FUNCTIONS", "documented_errors"]
