"""Whether the node belongs to a cluster, found out without importing what talks to one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nodeagent.settings import KubernetesSettings
    from nodeagent.views.shapes import RunsAs

TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def is_in_cluster(
    settings: KubernetesSettings,
    *,
    environment: Mapping[str, str] = os.environ,
    token: Path = TOKEN,
) -> bool:
    """Judge by the settings `kubernetes.use` and `kubernetes.kubeconfig`, then by what the kubelet
    gives to a pod with a service account. Reads nothing but whether the token is there.
    """
    if settings.use == "never":
        return False
    if settings.kubeconfig is not None:
        return True
    return bool(environment.get("KUBERNETES_SERVICE_HOST")) and token.exists()


def runs_as(settings: KubernetesSettings) -> RunsAs:
    """How the agent runs on its cluster's node; "" without a cluster."""
    if not is_in_cluster(settings):
        return ""
    return "pod" if os.environ.get("KUBERNETES_SERVICE_HOST") else "service"
