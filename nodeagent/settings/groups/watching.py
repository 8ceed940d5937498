"""What is read of the GPUs again and again, and who is told."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from nodeagent.settings.groups.group import Group
from nodeagent.settings.values import Duration, FilePath, ListenAddress


class SampleSettings(Group):
    """How often the GPUs are asked what they are doing."""

    interval: Duration = Field(
        5.0,
        description="Seconds between two samples of what changes fast: utilization, clocks, power, "
        "memory, processes.",
    )
    slow_interval: Duration = Field(
        60.0,
        description="Seconds between two samples of what changes slowly: ECC, remapped rows, "
        "NVLink, PCIe.",
    )
    deadline: Duration = Field(
        5.0,
        description="Seconds one GPU may take for a sample, and NVML for its events; after that "
        "the values are the last ones, and their age is told.",
    )


class MetricsSettings(Group):
    """What Prometheus gets."""

    listen: ListenAddress | None = Field(
        None,
        description="A second listener for /metrics, /healthz and /readyz alone, such as :9400; "
        "without it, metrics are on api.listen only.",
    )
    web_config: FilePath | None = Field(
        None,
        description="TLS and basic auth of metrics.listen: a file in Prometheus' web-config "
        "format. A change in it, or in the files it names, acts at once.",
    )
    counters: FilePath | None = Field(
        None,
        description="Which fields are exported: a file in dcgm-exporter's format. Without one, "
        "its default set and more. A change in it acts at once.",
    )
    names: Literal["asWritten", "renamed"] = Field(
        "asWritten",
        description="Whether fields have the names of the file of counters, or those that DCGM "
        "gave them in 4.6.",
    )
    host_label: Literal["Hostname", "hostname", "none"] = Field(
        "Hostname",
        description="The label with the node's name: Hostname as up to dcgm-exporter 4.8.2, "
        "hostname as since, or none.",
    )
    repeat_whole: bool = Field(
        False,
        description="Whether each MIG instance repeats the values of its whole GPU (power, "
        "temperature), as dcgm-exporter does; sums of them are wrong then.",
    )


class HealthSettings(Group):
    """How the GPUs' health is judged."""

    kernel_log: FilePath = Field(
        Path("/dev/kmsg"),
        description="The kernel log, the second source of XIDs beside NVML's events. A simulated "
        "node reads it only if it is named.",
    )
    xids: FilePath | None = Field(
        None,
        description="A file with classes of XIDs of your own, laid over those of the program. "
        "Findings of XIDs that it calls otherwise are over at the next start.",
    )
