"""Every setting: its name, default, unit and meaning."""

from __future__ import annotations

import platform
from typing import Literal

from pydantic import Field

from nodeagent.settings.groups.agent import ApiSettings, LogSettings, RunSettings, StateSettings
from nodeagent.settings.groups.cluster import KubeletSettings, KubernetesSettings
from nodeagent.settings.groups.gpus import DriverSettings, GpuSettings, PlanSettings, ResyncSettings
from nodeagent.settings.groups.group import Group
from nodeagent.settings.groups.mps import CdiSettings, MpsSettings
from nodeagent.settings.groups.watching import HealthSettings, MetricsSettings, SampleSettings
from nodeagent.settings.values import Command, Text


class Settings(Group):
    """Everything that can be set."""

    node_name: Text = Field(
        default_factory=lambda: platform.node().lower(),
        description="The node's name. Default: the variable NODE_NAME, else the host name.",
    )
    api: ApiSettings = ApiSettings()
    run: RunSettings = RunSettings()
    state: StateSettings = StateSettings()
    plan: PlanSettings = PlanSettings()
    resync: ResyncSettings = ResyncSettings()
    drift: Literal["mend", "report"] = Field(
        "mend", description="When someone else changes the layout: mend it, or only report it."
    )
    reset: Literal["never", "whenIdle"] = Field(
        "never",
        description="Whether a GPU proven idle may be reset where its MIG mode needs that.",
    )
    nvidia_smi: Command = Field(
        ("nvidia-smi",),
        description="The command that resets GPUs and sets time slices; split into words as a "
        "shell does, run without.",
    )
    gpu: GpuSettings = GpuSettings()
    driver: DriverSettings = DriverSettings()
    mps: MpsSettings = MpsSettings()
    cdi: CdiSettings = CdiSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    kubelet: KubeletSettings = KubeletSettings()
    sample: SampleSettings = SampleSettings()
    metrics: MetricsSettings = MetricsSettings()
    health: HealthSettings = HealthSettings()
    log: LogSettings = LogSettings()
