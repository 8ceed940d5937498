import base64
import json
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from nodeagent.cluster.client.credentials import InCluster, Kubeconfig, read_endpoint, tls_context
from nodeagent.cluster.client.faults import CredentialsUnusable
from nodeagent.cluster.client.presence import is_in_cluster
from nodeagent.settings import KubernetesSettings

TOKEN = "very-secret.token"
ENVIRON = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def service_account(folder: Path, *, token: str = TOKEN, authority: str = "PEM") -> Path:
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_text(authority)
    return folder


def kubeconfig(path: Path, *, cluster: Mapping[str, object] | None = None, **user: object) -> Path:
    """A kubeconfig with one context; JSON is YAML."""
    server = {"server": "http://me:pw@127.0.0.1:1/x"}
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": cluster or server}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return path


def new_certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=tests"
    command = ["openssl", *options.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def test_a_pod_reads_its_service_account(tmp_path: Path) -> None:
    folder = service_account(tmp_path, token=f"{TOKEN}\n")
    endpoint = read_endpoint(InCluster(folder, ENVIRON))
    assert endpoint.server == "https://10.0.0.1:443"
    assert endpoint.authorization == f"Bearer {TOKEN}"
    assert endpoint.authority == b"PEM"


def test_an_ipv6_server_gets_its_brackets(tmp_path: Path) -> None:
    environ = {**ENVIRON, "KUBERNETES_SERVICE_HOST": "fd00::1"}
    found = read_endpoint(InCluster(service_account(tmp_path), environ))
    assert found.url == "https://[fd00::1]:443"


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


def test_an_empty_token_is_no_token(tmp_path: Path) -> None:
    """A file that is being replaced may be empty for a moment."""
    with pytest.raises(CredentialsUnusable, match="empty"):
        read_endpoint(InCluster(service_account(tmp_path, token="\n"), ENVIRON))


@pytest.mark.parametrize("token", [f"{TOKEN}\nx", f"{TOKEN}\0", f"{TOKEN}ü"])
def test_a_token_that_no_header_can_hold_is_refused_unseen(tmp_path: Path, token: str) -> None:
    """The HTTP library would refuse it too, and quote it."""
    with pytest.raises(CredentialsUnusable) as refused:
        read_endpoint(InCluster(service_account(tmp_path, token=token), ENVIRON))
    assert TOKEN not in str(refused.value)


def test_a_kubeconfig_gives_server_and_token(tmp_path: Path) -> None:
    inline = read_endpoint(Kubeconfig(kubeconfig(tmp_path / "a", token=TOKEN)))
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    by_file = read_endpoint(
        Kubeconfig(kubeconfig(tmp_path / "b", tokenFile=str(tmp_path / "token")))
    )
    assert inline.authorization == by_file.authorization == f"Bearer {TOKEN}"
    assert inline.server == "http://127.0.0.1:1"
    assert inline.url == "http://127.0.0.1:1/x"


def test_certificates_are_in_the_kubeconfig_or_in_files_beside_it(tmp_path: Path) -> None:
    certificate, key = new_certificate(tmp_path)
    tls = {"server": "https://127.0.0.1:1/", "tls-server-name": "api", "proxy-url": "http://p"}
    beside = read_endpoint(
        Kubeconfig(
            kubeconfig(
                tmp_path / "a",
                cluster={**tls, "certificate-authority": certificate.name},
                **{"client-certificate": certificate.name, "client-key": str(key)},
            )
        )
    )
    inside = {
        f"{name}-data": base64.b64encode(file.read_bytes()).decode()
        for name, file in (("client-certificate", certificate), ("client-key", key))
    }
    authority = {"certificate-authority-data": base64.b64encode(certificate.read_bytes()).decode()}
    path = kubeconfig(tmp_path / "b", cluster={**tls, **authority, "certificate-authority": "none"})
    data = json.loads(path.read_text())
    data["users"][0]["user"] = {**inside, "client-key": "none"}
    path.write_text(json.dumps(data))
    found = read_endpoint(Kubeconfig(path))
    assert found == beside
    assert (found.url, found.tls_server_name) == ("https://127.0.0.1:1", "api")
    assert found.proxy == "http://p"
    assert len(tls_context(found).get_ca_certs()) == 1
    assert TOKEN not in repr(found)


def test_a_certificate_that_is_none_is_refused(tmp_path: Path) -> None:
    tls = {"server": "https://127.0.0.1:1", "certificate-authority": "ca"}
    (tmp_path / "ca").write_text("nonsense")
    endpoint = read_endpoint(Kubeconfig(kubeconfig(tmp_path / "a", cluster=tls)))
    with pytest.raises(CredentialsUnusable, match=r"certificates for https://127\.0\.0\.1:1"):
        tls_context(endpoint)


def test_a_server_that_need_not_be_verified_is_not(tmp_path: Path) -> None:
    tls = {"server": "https://127.0.0.1:1"}
    usual = read_endpoint(Kubeconfig(kubeconfig(tmp_path / "a", cluster=tls)))
    insecure = {**tls, "insecure-skip-tls-verify": True}
    any_server = read_endpoint(Kubeconfig(kubeconfig(tmp_path / "b", cluster=insecure)))
    assert tls_context(usual).verify_mode is ssl.CERT_REQUIRED
    assert tls_context(any_server).verify_mode is ssl.CERT_NONE


def test_a_user_with_a_password(tmp_path: Path) -> None:
    endpoint = read_endpoint(Kubeconfig(kubeconfig(tmp_path / "a", username="me", password="pw")))
    assert endpoint.authorization == "Basic bWU6cHc="


def test_a_user_whose_program_has_the_token_or_the_certificate(tmp_path: Path) -> None:
    """By the protocol of kubectl: it is beside the kubeconfig, and sees what it is asked for."""
    certificate, key = new_certificate(tmp_path)
    status = {"clientCertificateData": certificate.read_text(), "clientKeyData": key.read_text()}
    answers = {"token": {"token": TOKEN}, "certificate": status, "both": status | {"token": TOKEN}}
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho "$KUBERNETES_EXEC_INFO" > "$ASKED"\ncat "$1"\n')
    program.chmod(0o755)
    asked, version = tmp_path / "asked", "client.authentication.k8s.io/v1"
    found = {}
    for name, one in answers.items():
        answer = {"apiVersion": version, "kind": "ExecCredential", "status": one}
        (tmp_path / name).write_text(json.dumps(answer))
        entry = {
            "apiVersion": version,
            "command": "./program",
            "args": [str(tmp_path / name)],
            "env": [{"name": "ASKED", "value": str(asked)}],
        }
        tls = {"server": "https://127.0.0.1:1"}
        found[name] = read_endpoint(
            Kubeconfig(kubeconfig(tmp_path / "kubeconfig", cluster=tls, exec=entry))
        )
    assert json.loads(asked.read_text())["spec"] == {"interactive": False}
    has = {name: (one.authorization, one.certificate) for name, one in found.items()}
    assert has == {
        "token": (f"Bearer {TOKEN}", b""),
        "certificate": ("", certificate.read_bytes()),
        "both": (f"Bearer {TOKEN}", certificate.read_bytes()),
    }
    tls_context(found["certificate"])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("there-is-none", "program there-is-none .*: No such file"),
        (f"echo {TOKEN} >&2; exit 3", "program sh .*: exit code 3"),
        ('echo \'{"apiVersion": "v2", "status": {"token": "t"}}\'', "program .* no ExecCredential"),
        ('echo \'{"apiVersion": "v1", "status": {}}\'', "program sh .* no ExecCredential of v1"),
        (f"echo {TOKEN}", "program sh .*: its answer is no ExecCredential"),
        (f"head -c 300M /dev/zero; echo {TOKEN}", "program sh .*: its answer is no ExecCredential"),
    ],
)
def test_a_program_without_credentials(tmp_path: Path, command: str, said: str) -> None:
    entry = {"apiVersion": "v1", "command": "sh", "args": ["-c", command]}
    if " " not in command:
        entry = {"apiVersion": "v1", "command": command}
    with pytest.raises(CredentialsUnusable, match=said) as refused:
        read_endpoint(Kubeconfig(kubeconfig(tmp_path / "a", exec=entry)))
    assert TOKEN not in str(refused.value)
    assert refused.value.remedy == f"try: kubectl --kubeconfig {tmp_path / 'a'} version"


def test_a_program_adds_to_what_the_kubeconfig_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a kubeconfig that is named from where it is, and with empty keys, as kubectl reads."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program"
    answer = {"apiVersion": "v1", "status": {"token": TOKEN}}
    program.write_text(f"#!/bin/sh\necho warning >&2\necho '{json.dumps(answer)}'\n")
    program.chmod(0o755)
    (tmp_path / "pem").write_text("PEM")
    tls = {"server": "https://127.0.0.1:1", "certificate-authority-data": "", "proxy-url": ""}
    user = {"client-certificate": "pem", "client-key": "", "tokenFile": ""}
    entry = {"apiVersion": "v1", "command": "./program"}
    path = kubeconfig(Path("kubeconfig"), cluster=tls, exec=entry, **user)
    found = read_endpoint(Kubeconfig(path))
    assert (found.authorization, found.certificate) == (f"Bearer {TOKEN}", b"PEM")
    assert found.proxy is None


def test_a_provider_of_identities_is_refused_with_what_to_have_in_its_place(tmp_path: Path) -> None:
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": TOKEN}}}
    with pytest.raises(CredentialsUnusable, match="auth-provider") as refused:
        read_endpoint(Kubeconfig(kubeconfig(tmp_path / "a", **user)))
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


def test_nothing_secret_is_in_a_representation(tmp_path: Path) -> None:
    credentials = InCluster(service_account(tmp_path), {**ENVIRON, "SECRET": TOKEN})
    assert TOKEN not in repr(credentials)
    assert TOKEN not in repr(read_endpoint(credentials))


def test_a_cluster_is_there_where_one_is_named_or_given(tmp_path: Path) -> None:
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
