"""How the agent runs in a cluster, if in one, found out without importing what talks to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nodeagent.settings import KubernetesSettings
    from nodeagent.views.shapes import RunsAs

TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def runs_as(
    settings: KubernetesSettings,
    *,
    environment: Mapping[str, str] = os.environ,
    token: Path = TOKEN,
) -> RunsAs:
    """Judge by the settings `kubernetes.use` and `kubernetes.kubeconfig`, then by what the kubelet
    gives to a pod with a service account. Reads nothing but whether the token is there.
    """
    in_pod = bool(environment.get("KUBERNETES_SERVICE_HOST"))
    if settings.use == "never" or not (settings.kubeconfig or (in_pod and token.exists())):
        return ""
    return "pod" if in_pod else "service"
