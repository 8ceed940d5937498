"""Reading who we are: what is taken from the files, and what is never disclosed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodeagent.cluster.client.credentials import InCluster, Kubeconfig, read_identity
from nodeagent.cluster.client.faults import CredentialsUnusable

TOKEN = "very-secret.token"
ENVIRON = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def service_account(folder: Path, *, token: str = TOKEN, authority: str = "PEM") -> Path:
    """What the kubelet mounts."""
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_text(authority)
    return folder


def kubeconfig(path: Path, **user: str) -> Path:
    """A kubeconfig with one context; JSON is YAML."""
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": {"server": "http://me:pw@127.0.0.1:1/x"}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return path


def test_a_pod_reads_its_service_account(tmp_path: Path) -> None:
    """Server, token and authority; a newline at the token's end is no part of it."""
    folder = service_account(tmp_path, token=f"{TOKEN}\n")
    identity = read_identity(InCluster(folder, ENVIRON))
    assert identity.server == "https://10.0.0.1:443"
    assert identity.authorization == f"Bearer {TOKEN}"
    assert identity.configuration.ssl_ca_cert == str(folder / "ca.crt")


def test_an_ipv6_server_gets_its_brackets(tmp_path: Path) -> None:
    """A host with colons is written as addresses have it."""
    environ = {**ENVIRON, "KUBERNETES_SERVICE_HOST": "fd00::1"}
    found = read_identity(InCluster(service_account(tmp_path), environ))
    assert found.configuration.host == "https://[fd00::1]:443"


def test_a_new_token_is_no_new_connection_and_a_new_authority_is(tmp_path: Path) -> None:
    """Only what TLS is made from asks for a new TLS context."""
    first = read_identity(InCluster(service_account(tmp_path), ENVIRON))
    rotated = read_identity(InCluster(service_account(tmp_path, token="other"), ENVIRON))
    replaced = read_identity(InCluster(service_account(tmp_path, authority="NEW"), ENVIRON))
    assert rotated.connection == first.connection
    assert rotated != first
    assert replaced.connection != first.connection


@pytest.mark.parametrize("missing", ["token", "ca.crt", "KUBERNETES_SERVICE_HOST"])
def test_what_is_missing_is_named(tmp_path: Path, missing: str) -> None:
    """The message names the file or the variable."""
    service_account(tmp_path)
    (tmp_path / missing).unlink(missing_ok=True)
    environ = {key: value for key, value in ENVIRON.items() if key != missing}
    with pytest.raises(CredentialsUnusable, match=missing):
        read_identity(InCluster(tmp_path, environ))


def test_an_empty_token_is_no_token(tmp_path: Path) -> None:
    """A file that is being replaced may be empty for a moment."""
    with pytest.raises(CredentialsUnusable, match="empty"):
        read_identity(InCluster(service_account(tmp_path, token="\n"), ENVIRON))


@pytest.mark.parametrize("token", [f"{TOKEN}\nx", f"{TOKEN}\0", f"{TOKEN}ü"])
def test_a_token_that_no_header_can_hold_is_refused_unseen(tmp_path: Path, token: str) -> None:
    """The HTTP library would refuse it too, and quote it."""
    with pytest.raises(CredentialsUnusable) as refused:
        read_identity(InCluster(service_account(tmp_path, token=token), ENVIRON))
    assert TOKEN not in str(refused.value)


def test_a_kubeconfig_gives_server_and_token(tmp_path: Path) -> None:
    """A token in the file and one in a file of its own; the server's user is not shown."""
    inline = read_identity(Kubeconfig(kubeconfig(tmp_path / "a", token=TOKEN)))
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    by_file = read_identity(
        Kubeconfig(kubeconfig(tmp_path / "b", tokenFile=str(tmp_path / "token")))
    )
    assert inline.authorization == by_file.authorization == f"Bearer {TOKEN}"
    assert inline.server == "http://127.0.0.1:1"


def test_a_kubeconfig_without_a_user_gives_no_authorization(tmp_path: Path) -> None:
    """A client without credentials is a user to a server behind `kubectl proxy`."""
    assert read_identity(Kubeconfig(kubeconfig(tmp_path / "a"))).authorization == ""


@pytest.mark.parametrize(
    "text",
    [f"{TOKEN}: [", f"- {TOKEN}", "", f'"{TOKEN}"', "contexts: []", f"current-context: {TOKEN}"],
)
def test_a_broken_kubeconfig_is_refused_unseen(tmp_path: Path, text: str) -> None:
    """Whatever is wrong with it, nothing of it is repeated."""
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(CredentialsUnusable, match="kubeconfig") as refused:
        read_identity(Kubeconfig(path))
    assert TOKEN not in str(refused.value)


def test_a_missing_kubeconfig_and_a_missing_context_are_errors(tmp_path: Path) -> None:
    """Both are refused before any request."""
    with pytest.raises(CredentialsUnusable, match="No such file"):
        read_identity(Kubeconfig(tmp_path / "none"))
    with pytest.raises(CredentialsUnusable, match="not a usable kubeconfig"):
        read_identity(Kubeconfig(kubeconfig(tmp_path / "a"), context="other"))


def test_nothing_secret_is_in_a_representation(tmp_path: Path) -> None:
    """A log that shows these objects shows no token."""
    credentials = InCluster(service_account(tmp_path), {**ENVIRON, "SECRET": TOKEN})
    assert TOKEN not in repr(credentials)
    assert TOKEN not in repr(read_identity(credentials))
