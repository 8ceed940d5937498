"""The driver as the settings have it, with the sources that know users whom NVML does not see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.cluster.client.presence import runs_as
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.original_settings import OriginalSettings

if TYPE_CHECKING:
    from nodeagent.cluster.kubelet.device_users import Recorded
    from nodeagent.gpu.topology import Topology
    from nodeagent.gpu.users import UsageSource
    from nodeagent.settings import Settings


def make_driver(
    settings: Settings,
    *,
    simulated_smi: Sequence[str] | None,
    original: OriginalSettings | None = None,
    topology: Topology | None = None,
    time_slices: bool = False,
    recorded: Recorded | None = None,
) -> Driver:
    """Make the driver, an async context manager: one a process, since its calls may hang for good.

    `simulated_smi` is the command in place of nvidia-smi where the GPUs are simulated, None where
    they are real. `Driver` and `kubelet_users` explain the other parameters.
    """
    simulated, processes = simulated_smi is not None, None
    if not simulated:
        from nodeagent.gpu.process_details import ProcessDetails

        processes = ProcessDetails()
    return Driver(
        observe_deadline=settings.driver.observe_deadline,
        step_deadline=settings.driver.step_deadline,
        sources=tuple(_sources(settings, recorded, simulated=simulated)),
        nvidia_smi=settings.nvidia_smi if simulated_smi is None else simulated_smi,
        proc_root=None if simulated else Path("/proc"),
        topology=topology,
        original=original or OriginalSettings(None),
        time_slices=time_slices,
        processes=processes,
    )


def _sources(
    settings: Settings, recorded: Recorded | None, *, simulated: bool
) -> Iterator[UsageSource]:
    if not simulated:
        from nodeagent.gpu.capability_files import CapabilityUsers, UsageProbe

        yield CapabilityUsers(UsageProbe().read, deadline=settings.driver.observe_deadline)
    if settings.kubelet.use == "never" or (simulated and settings.kubelet.use == "auto"):
        return  # as in `kubelet_users`, which most commands need not import then
    from nodeagent.cluster.kubelet.device_users import kubelet_users

    in_cluster = bool(runs_as(settings.kubernetes))
    kubelet = kubelet_users(
        settings.kubelet, in_cluster=in_cluster, simulated=simulated, recorded=recorded
    )
    if kubelet:
        yield kubelet
