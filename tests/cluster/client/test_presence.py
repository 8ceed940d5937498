"""Whether there is a cluster to belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from nodeagent.cluster.client.presence import is_in_cluster
from nodeagent.settings import KubernetesSettings


def test_a_cluster_is_there_where_one_is_named_or_given(tmp_path: Path) -> None:
    """A kubeconfig names one; a pod has one when it has a token; `never` overrules both."""
    token = tmp_path / "token"
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}

    def found(
        use: Literal["auto", "never"], kubeconfig: Path | None, environment: dict[str, str]
    ) -> bool:
        settings = KubernetesSettings(use=use, kubeconfig=kubeconfig)
        return is_in_cluster(settings, environment=environment, token=token)

    assert found("auto", Path("/k"), {})
    assert not found("auto", None, {})
    assert not found("auto", None, pod)  # a pod whose service account is not mounted
    token.write_text("x")
    assert found("auto", None, pod)
    assert not found("auto", None, {})
    assert not found("never", Path("/k"), pod)
