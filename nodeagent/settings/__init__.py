"""Settings: what they are (`model`, `groups`), how they are written (`values`), whence they come
(`sources`).

A part of the agent gets its own group, never the whole.
"""

from nodeagent.settings.model import (
    ApiSettings,
    CdiSettings,
    DriverSettings,
    GpuSettings,
    HealthSettings,
    KubeletSettings,
    KubernetesSettings,
    LogSettings,
    MetricsSettings,
    MpsSettings,
    PlanSettings,
    ResyncSettings,
    RunSettings,
    SampleSettings,
    Settings,
    StateSettings,
)
from nodeagent.settings.sources import DEFAULT_FILE, load_settings
from nodeagent.settings.values import Address

__all__ = [
    "DEFAULT_FILE",
    "Address",
    "ApiSettings",
    "CdiSettings",
    "DriverSettings",
    "GpuSettings",
    "HealthSettings",
    "KubeletSettings",
    "KubernetesSettings",
    "LogSettings",
    "MetricsSettings",
    "MpsSettings",
    "PlanSettings",
    "ResyncSettings",
    "RunSettings",
    "SampleSettings",
    "Settings",
    "StateSettings",
    "load_settings",
]
