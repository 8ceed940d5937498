import base64
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from nodeagent.cluster.client.credentials import (
    Endpoint,
    InCluster,
    Kubeconfig,
    read_endpoint,
    tls_context,
)
from nodeagent.cluster.client.faults import CredentialsUnusable
from nodeagent.cluster.client.presence import runs_as
from nodeagent.settings import KubernetesSettings
from tests.cluster.client.rig import certificate
from tests.folders import executable

TOKEN = "very-secret.token"
ENVIRON = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
TLS = {"server": "https://127.0.0.1:1"}


def service_account(folder: Path, *, token: str = TOKEN, authority: str = "PEM") -> Path:
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_text(authority)
    return folder


def kubeconfig(path: Path, *, cluster: Mapping[str, object] | None = None, **user: object) -> Path:
    """A kubeconfig with one context; JSON is YAML."""
    server = {"server": "http://me:pw@127.0.0.1:1/x"}
    path.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster or server}],
        "users": [{"name": "u", "user": user}],
    }))  # fmt: skip
    return path


def endpoint(folder: Path, cluster: Mapping[str, object] | None = None, **user: object) -> Endpoint:
    """As a kubeconfig in this folder says."""
    return read_endpoint(Kubeconfig(kubeconfig(folder / "kubeconfig", cluster=cluster, **user)))


@pytest.mark.parametrize(("host", "shown"), [("10.0.0.1", "10.0.0.1"), ("fd00::1", "[fd00::1]")])
def test_a_pod_reads_its_service_account(tmp_path: Path, host: str, shown: str) -> None:
    environ = ENVIRON | {"KUBERNETES_SERVICE_HOST": host, "SECRET": TOKEN}
    credentials = InCluster(service_account(tmp_path, token=f"{TOKEN}\n"), environ)
    found = read_endpoint(credentials)
    assert found.server == found.url == f"https://{shown}:443"
    assert (found.authorization, found.authority) == (f"Bearer {TOKEN}", b"PEM")
    assert TOKEN not in repr((credentials, found))


def test_a_new_token_is_no_new_connection_and_a_new_authority_is(tmp_path: Path) -> None:
    first = read_endpoint(InCluster(service_account(tmp_path), ENVIRON))
    rotated = read_endpoint(InCluster(service_account(tmp_path, token="other"), ENVIRON))
    replaced = read_endpoint(InCluster(service_account(tmp_path, authority="NEW"), ENVIRON))
    assert rotated == first
    assert rotated.authorization != first.authorization
    assert replaced != first


@pytest.mark.parametrize("missing", ["token", "ca.crt", "KUBERNETES_SERVICE_HOST"])
def test_what_is_missing_is_named(tmp_path: Path, missing: str) -> None:
    service_account(tmp_path)
    (tmp_path / missing).unlink(missing_ok=True)
    environ = {key: value for key, value in ENVIRON.items() if key != missing}
    with pytest.raises(CredentialsUnusable, match=missing):
        read_endpoint(InCluster(tmp_path, environ))


@pytest.mark.parametrize("token", ["\n", f"{TOKEN}\nx", f"{TOKEN}\0", f"{TOKEN}ü"])
def test_a_token_that_no_header_can_hold_is_refused_unseen(tmp_path: Path, token: str) -> None:
    """The HTTP library would refuse it too, and quote it; a file that is being replaced may be
    empty for a moment.
    """
    with pytest.raises(CredentialsUnusable, match=None if token.strip() else "empty") as refused:
        read_endpoint(InCluster(service_account(tmp_path, token=token), ENVIRON))
    assert TOKEN not in str(refused.value)


def test_a_token_file_that_is_missing_is_named_with_what_makes_it(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "kubeconfig", tokenFile="t")
    with pytest.raises(CredentialsUnusable, match=f"{tmp_path / 't'} cannot be read") as refused:
        read_endpoint(Kubeconfig(path, node="gpu-7"))
    for part in ("kubectl create token nodeagent", "object-name gpu-7", f"into {tmp_path / 't'}"):
        assert part in refused.value.remedy


def test_a_kubeconfig_gives_server_and_token(tmp_path: Path) -> None:
    inline = endpoint(tmp_path, token=TOKEN)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    by_file = endpoint(tmp_path, tokenFile=str(tmp_path / "token"))
    assert inline.authorization == by_file.authorization == f"Bearer {TOKEN}"
    assert inline.server == "http://127.0.0.1:1"
    assert inline.url == "http://127.0.0.1:1/x"


def test_certificates_are_in_the_kubeconfig_or_in_files_beside_it(tmp_path: Path) -> None:
    own, key = certificate(tmp_path) / "certificate.pem", tmp_path / "key.pem"
    tls = {"server": "https://127.0.0.1:1/", "tls-server-name": "api", "proxy-url": "http://p"}
    files = {"client-certificate": own.name, "client-key": str(key)}
    beside = endpoint(tmp_path, {**tls, "certificate-authority": own.name}, **files)
    data = [base64.b64encode(file.read_bytes()).decode() for file in (own, key)]
    authority = {"certificate-authority-data": data[0], "certificate-authority": "none"}
    inside = {"client-certificate-data": data[0], "client-key-data": data[1], "client-key": "none"}
    found = endpoint(tmp_path, tls | authority, **inside)
    assert found == beside
    assert (found.url, found.tls_server_name) == ("https://127.0.0.1:1", "api")
    assert found.proxy == "http://p"
    assert len(tls_context(found).get_ca_certs()) == 1
    assert TOKEN not in repr(found)


def test_a_certificate_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("nonsense")
    found = endpoint(tmp_path, TLS | {"certificate-authority": "ca"})
    with pytest.raises(CredentialsUnusable, match=r"certificates for https://127\.0\.0\.1:1"):
        tls_context(found)


def test_a_server_that_need_not_be_verified_is_not(tmp_path: Path) -> None:
    any_server = endpoint(tmp_path, TLS | {"insecure-skip-tls-verify": True})
    assert tls_context(endpoint(tmp_path, TLS)).verify_mode is ssl.CERT_REQUIRED
    assert tls_context(any_server).verify_mode is ssl.CERT_NONE


def test_a_user_with_a_password(tmp_path: Path) -> None:
    found = endpoint(tmp_path, username="me", password="pw")
    assert found.authorization == "Basic bWU6cHc="


def test_a_user_whose_program_has_the_token_or_the_certificate(tmp_path: Path) -> None:
    """By the protocol of kubectl: it is beside the kubeconfig, and sees what it is asked for."""
    own, key = certificate(tmp_path) / "certificate.pem", tmp_path / "key.pem"
    status = {"clientCertificateData": own.read_text(), "clientKeyData": key.read_text()}
    answers = {"token": {"token": TOKEN}, "certificate": status, "both": status | {"token": TOKEN}}
    script = '#!/bin/sh\necho "$KUBERNETES_EXEC_INFO" > "$ASKED"\ncat "$1"\n'
    executable(tmp_path / "program", script)
    asked, version = tmp_path / "asked", "client.authentication.k8s.io/v1"
    found = {}
    for name, one in answers.items():
        answer = {"apiVersion": version, "kind": "ExecCredential", "status": one}
        (tmp_path / name).write_text(json.dumps(answer))
        told = {"args": [str(tmp_path / name)], "env": [{"name": "ASKED", "value": str(asked)}]}
        entry = {"apiVersion": version, "command": "./program"} | told
        found[name] = endpoint(tmp_path, TLS, exec=entry)
    assert json.loads(asked.read_text())["spec"] == {"interactive": False}
    has = {name: (one.authorization, one.certificate) for name, one in found.items()}
    assert has == {
        "token": (f"Bearer {TOKEN}", b""),
        "certificate": ("", own.read_bytes()),
        "both": (f"Bearer {TOKEN}", own.read_bytes()),
    }
    tls_context(found["certificate"])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("there-is-none", "program there-is-none .* cannot be run: No such file"),
        (f"echo {TOKEN} >&2; exit 3", "program sh .*: exit code 3"),
        ('echo \'{"apiVersion": "v2", "status": {"token": "t"}}\'', "program .* no ExecCredential"),
        ('echo \'{"apiVersion": "v1", "status": {}}\'', "program sh .* no ExecCredential of v1"),
        (f"echo {TOKEN}", "program sh .*: its answer is no ExecCredential"),
        (f"head -c 300M /dev/zero; echo {TOKEN}", "program sh .*: its answer is no ExecCredential"),
    ],
)
def test_a_program_without_credentials(tmp_path: Path, command: str, said: str) -> None:
    shell = {"command": "sh", "args": ["-c", command]} if " " in command else {"command": command}
    with pytest.raises(CredentialsUnusable, match=said) as refused:
        endpoint(tmp_path, exec={"apiVersion": "v1"} | shell)
    assert TOKEN not in str(refused.value)
    asks = f"`kubectl --kubeconfig {tmp_path / 'kubeconfig'} auth whoami`"
    assert (asks in refused.value.remedy) is (command != "there-is-none")


def test_a_program_adds_to_what_the_kubeconfig_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a kubeconfig that is named from where it is, and with empty keys, as kubectl reads."""
    monkeypatch.chdir(tmp_path)
    answer = {"apiVersion": "v1", "status": {"token": TOKEN}}
    script = f"#!/bin/sh\necho warning >&2\necho '{json.dumps(answer)}'\n"
    executable(tmp_path / "program", script)
    (tmp_path / "pem").write_text("PEM")
    tls = TLS | {"certificate-authority-data": "", "proxy-url": ""}
    user = {"client-certificate": "pem", "client-key": "", "tokenFile": ""}
    entry = {"apiVersion": "v1", "command": "./program"}
    found = endpoint(Path(), tls, exec=entry, **user)
    assert (found.authorization, found.certificate) == (f"Bearer {TOKEN}", b"PEM")
    monkeypatch.setenv("https_proxy", "http://q")
    for others, proxy in (("", "http://q"), ("127.0.0.1", None)):
        monkeypatch.setenv("no_proxy", others)
        assert endpoint(Path(), tls, exec=entry, **user).proxy == proxy


def test_a_provider_of_identities_is_refused_with_what_to_have_in_its_place(tmp_path: Path) -> None:
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": TOKEN}}}
    with pytest.raises(CredentialsUnusable, match="auth-provider") as refused:
        endpoint(tmp_path, **user)
    assert "kubectl create token nodeagent" in refused.value.remedy
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        *(f"{TOKEN}: [", f"- {TOKEN}", "", f'"{TOKEN}"', "contexts: []"),
        *(f"current-context: {TOKEN}", '{"a":' * 1500 + "1" + "}" * 1500),
    ],
)
def test_a_broken_kubeconfig_is_refused_unseen(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(CredentialsUnusable, match="kubeconfig") as refused:
        read_endpoint(Kubeconfig(path))
    assert TOKEN not in str(refused.value)


def test_a_missing_kubeconfig_and_a_missing_context_are_errors(tmp_path: Path) -> None:
    with pytest.raises(CredentialsUnusable, match="No such file"):
        read_endpoint(Kubeconfig(tmp_path / "none"))
    with pytest.raises(CredentialsUnusable, match="not a usable kubeconfig"):
        read_endpoint(Kubeconfig(kubeconfig(tmp_path / "a"), context="other"))


def test_a_cluster_is_there_where_one_is_named_or_given(tmp_path: Path) -> None:
    given, pod = Path("/k"), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}

    def found(use: Literal["auto", "never"], kubeconfig: Path | None, **environment: str) -> str:
        settings = KubernetesSettings(use=use, kubeconfig=kubeconfig)
        return runs_as(settings, environment=environment, token=tmp_path / "token")

    assert found("auto", given) == "service"
    assert found("auto", given, **pod) == "pod"
    assert not found("auto", None, **pod)  # a pod whose service account is not mounted
    (tmp_path / "token").write_text("x")
    assert found("auto", None, **pod) == "pod"
    assert not found("auto", None)
    assert not found("never", given, **pod)
