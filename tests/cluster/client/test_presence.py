"""Whether there is a cluster to belong to."""

from __future__ import annotations

from pathlib import Path

from nodeagent.cluster.client.presence import is_in_cluster


def test_a_cluster_is_there_where_one_is_named_or_given(tmp_path: Path) -> None:
    """A kubeconfig names one; a pod has one when it has a token; `never` overrules both."""
    token = tmp_path / "token"
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}

    def found(use: str, kubeconfig: Path | None, environment: dict[str, str]) -> bool:
        return is_in_cluster(use=use, kubeconfig=kubeconfig, environment=environment, token=token)

    assert found("auto", Path("/k"), {})
    assert not found("auto", None, {})
    assert not found("auto", None, pod)  # a pod whose service account is not mounted
    token.write_text("x")
    assert found("auto", None, pod)
    assert not found("auto", None, {})
    assert not found("never", Path("/k"), pod)
