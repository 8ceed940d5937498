"""Whether the node belongs to a cluster, found out without importing what talks to one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def is_in_cluster(
    *, use: str, kubeconfig: Path | None, environment: Mapping[str, str], token: Path = TOKEN
) -> bool:
    """By the settings `kubernetes.use` and `kubernetes.kubeconfig`, then by what the kubelet gives
    to a pod with a service account. Reads nothing but whether the token is there.
    """
    if use == "never":
        return False
    if kubeconfig is not None:
        return True
    return bool(environment.get("KUBERNETES_SERVICE_HOST")) and token.exists()
