"""Settings: what they are (`model`, `cluster`), how written (`values`), whence read (`sources`).

A part of the agent gets its own group, never the whole.
"""

from nodeagent.settings.cluster import KubeletSettings, KubernetesSettings
from nodeagent.settings.model import (
    HealthSettings,
    MetricsSettings,
    MpsSettings,
    PlanSettings,
    SampleSettings,
    Settings,
)
from nodeagent.settings.sources import DEFAULT_FILE, load_settings
from nodeagent.settings.values import Address

__all__ = [
    "DEFAULT_FILE",
    "Address",
    "HealthSettings",
    "KubeletSettings",
    "KubernetesSettings",
    "MetricsSettings",
    "MpsSettings",
    "PlanSettings",
    "SampleSettings",
    "Settings",
    "load_settings",
]
