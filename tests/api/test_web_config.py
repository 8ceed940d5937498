"""Prometheus' web-config file: what it may say, and what is refused instead of left out."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from nodeagent.api.web_config import read_web_config
from nodeagent.errors import UsageError
from tests.cluster.client.test_access import certificate

_DIGEST = "a" * 21 + "e" + "a" * 31  # the last letter of the salt has two bits
HASH = f"$2y$04${_DIGEST}"


def _read(folder: Path, text: str):  # type: ignore[no-untyped-def]  # what is read is tested
    path = folder / "web.yaml"
    path.write_text(text)
    return read_web_config(path)


def _refused(folder: Path, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        _read(folder, text)
    return str(caught.value)


def test_an_empty_file_asks_for_nothing(tmp_path: Path) -> None:
    """Neither TLS nor passwords."""
    found = _read(tmp_path, "# nothing yet\n{}\n")
    assert (found.tls, found.users, found.headers) == (None, {}, {})


def test_all_that_can_be_said(tmp_path: Path) -> None:
    """Files are found beside the file; versions, client certificates, users and headers count."""
    found = _read(
        tmp_path,
        f"""
tls_server_config:
  cert_file: tls/server.crt
  key_file: /keys/server.key
  client_ca_file: ca.crt
  client_auth_type: RequireAndVerifyClientCert
  min_version: TLS13
  max_version: TLS13
  prefer_server_cipher_suites: true
  cipher_suites: []
http_server_config:
  http2: false
  headers: {{Strict-Transport-Security: max-age=60}}
basic_auth_users:
  prometheus: {HASH}
""",
    )
    assert found.tls.certificate == tmp_path / "tls/server.crt"
    assert found.tls.files == (
        tmp_path / "tls/server.crt",
        Path("/keys/server.key"),
        tmp_path / "ca.crt",
    )
    assert found.tls.client_auth is ssl.CERT_REQUIRED
    assert found.tls.oldest is found.tls.newest is ssl.TLSVersion.TLSv1_3
    assert found.users == {"prometheus": HASH.encode()}
    assert found.headers == {"Strict-Transport-Security": "max-age=60"}
    assert HASH not in repr(found)


def test_the_context_is_what_the_file_says(tmp_path: Path) -> None:
    """TLS 1.2 at least, and the client's certificate verified against the authority."""
    certificate(tmp_path)
    found = _read(
        tmp_path,
        "tls_server_config: {cert_file: certificate.pem, key_file: key.pem, "
        "client_ca_file: certificate.pem, client_auth_type: VerifyClientCertIfGiven}",
    )
    context = found.tls.context()
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_OPTIONAL


PAIR = "cert_file: a, key_file: b"


FAULTS: tuple[tuple[str, str], ...] = (
    ("tls_config: {}", "did you mean tls_server_config?"),
    ("[]", "no keys"),
    ("tls_server_config: {cert_file: a}", "no key_file"),
    ("tls_server_config: {key_file: a}", "no cert_file"),
    (f"tls_server_config: {{{PAIR}, cert_fil: x}}", "did you mean cert_file?"),
    (f"tls_server_config: {{{PAIR}, cipher_suites: [X]}}", "left to OpenSSL"),
    (f"tls_server_config: {{{PAIR}, min_version: TLS10}}", "not offered any more"),
    (f"tls_server_config: {{{PAIR}, min_version: SSL3}}", "TLS12 or TLS13"),
    (f"tls_server_config: {{{PAIR}, max_version: [TLS12]}}", "TLS12 or TLS13"),
    (f"tls_server_config: {{{PAIR}, client_auth_type: [x]}}", "is not known"),
    ("tls_server_config: {cipher_suites: []}", "no cert_file"),
    (f"tls_server_config: {{{PAIR}, min_version: TLS13, max_version: TLS12}}", "above"),
    (f"tls_server_config: {{{PAIR}, client_ca_file: c}}", "asks for no certificate"),
    (
        f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert}}",
        "needs client_ca_file",
    ),
    (f"tls_server_config: {{{PAIR}, client_auth_type: RequireAnyClientCert}}", "is not supported"),
    ("basic_auth_users: {prometheus: secret}", "not a bcrypt hash"),
    (f"basic_auth_users: {{p: $2y$04${'a' * 53}}}", "bcrypt hash"),
    (f"basic_auth_users: {{p: $2y$31${_DIGEST}}}", "cost of 31"),
    (f"basic_auth_users: {{p: $2y$03${_DIGEST}}}", "cost of 3"),
    ("http_server_config: {headers: {Set-Cookie: x}}", "not accepted"),
    ("http_server_config: {http3: true}", "not known"),
    ("a: [", "is not YAML"),
)


def test_a_named_pipe_hangs_nothing(tmp_path: Path) -> None:
    """It is refused, and not waited for."""
    os.mkfifo(tmp_path / "web.yaml")
    with pytest.raises(UsageError, match="not a regular file"):
        read_web_config(tmp_path / "web.yaml")


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    """Each fault names the file and says what would be right; no value of a secret is repeated."""
    for text, reported in FAULTS:
        message = _refused(tmp_path, text)
        assert reported in message, text
        assert "web.yaml" in message, text
        assert "secret" not in message, text


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    """A missing file, one that is no certificate, and a pair that does not belong together."""
    tls = f"tls_server_config: {{{PAIR}}}"
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        _read(tmp_path, tls).tls.context()
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").write_text("x")
    with pytest.raises(UsageError, match="belong together"):
        _read(tmp_path, tls).tls.context()
    with pytest.raises(UsageError, match=r"missing.yaml cannot be read"):
        read_web_config(tmp_path / "missing.yaml")
