"""Who the agent is for the API server and where that is, read from files.

Reads block and belong in a thread. What is read is never printed: see `Identity`'s repr.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kubernetes.aio import client, config

from nodeagent.cluster.client.faults import CredentialsUnusable

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class InCluster:
    """The service account that the kubelet mounts into a pod; `environ` names the server."""

    folder: Path = _SERVICE_ACCOUNT
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def configuration(self) -> client.Configuration:
        host = self.environ.get("KUBERNETES_SERVICE_HOST", "")
        port = self.environ.get("KUBERNETES_SERVICE_PORT", "")
        if not (host and port):
            raise CredentialsUnusable(
                "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set",
                remedy="outside a pod, name a kubeconfig file",
            )
        token = _read(self.folder / "token").strip()
        authority = self.folder / "ca.crt"
        if not token or not _read(authority).strip():
            raise CredentialsUnusable(f"the token or ca.crt in {self.folder} is empty")
        found = client.Configuration(
            host=f"https://{f'[{host}]' if ':' in host else host}:{port}",
            ssl_ca_cert=str(authority),
        )
        found.api_key["BearerToken"] = f"Bearer {token}"
        return found


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """A kubeconfig file; `context` None takes its current one."""

    path: Path
    context: str | None = None

    def configuration(self) -> client.Configuration:
        _read(self.path)  # for the better error; the library passes over a missing file
        found = client.Configuration(host="")
        try:
            # In a loop of its own: the library's coroutine reads files and may run a program.
            asyncio.run(
                config.load_kube_config(
                    config_file=str(self.path),
                    context=self.context,
                    client_configuration=found,
                    persist_config=False,
                )
            )
        except Exception as error:  # noqa: BLE001 - the library trips in every way over strange files
            # Its words may repeat a line of the file, and a token with it.
            raise CredentialsUnusable(
                f"{self.path} is not a usable kubeconfig ({type(error).__name__})",
                remedy=f"try: kubectl --kubeconfig {self.path} version",
            ) from None
        if not found.host:
            raise CredentialsUnusable(f"{self.path} names no server")
        return found


Credentials = InCluster | Kubeconfig


def credentials_of(kubeconfig: Path | None, context: str | None) -> Credentials:
    """As the settings `kubernetes.kubeconfig` and `kubernetes.context` say."""
    return InCluster() if kubeconfig is None else Kubeconfig(kubeconfig, context)


@dataclass(frozen=True, slots=True)
class Identity:
    """What was read. Two identities with the same `connection` differ in their token at most."""

    server: str  # for people: no user names, no path
    connection: str = field(repr=False)
    authorization: str = field(repr=False)  # the whole header; empty without a token
    configuration: client.Configuration = field(repr=False, compare=False)


def read_identity(credentials: Credentials) -> Identity:
    """Read everything anew. Raises `CredentialsUnusable`, whose message holds nothing secret."""
    found = credentials.configuration()
    authorization = str(found.api_key.get("BearerToken", "")).strip()
    if not (authorization.isascii() and authorization.isprintable()):
        # Such a header would be refused by an exception that repeats it.
        raise CredentialsUnusable("the token holds characters that no token has")
    if authorization:
        found.api_key["BearerToken"] = authorization
    return Identity(_server(str(found.host)), _fingerprint(found), authorization, found)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "not text"
        remedy = "check kubernetes.kubeconfig, or the pod's service account"
        raise CredentialsUnusable(f"{path} cannot be read: {words}", remedy=remedy) from error


def _server(host: str) -> str:
    """The address without a user's name, password or path."""
    scheme, _, rest = host.partition("://")
    return f"{scheme}://{rest.split('/')[0].rpartition('@')[2]}"


def _fingerprint(found: client.Configuration) -> str:
    """Changes when a new TLS context or another address is needed."""
    digest = hashlib.sha256()
    for value in (found.host, found.verify_ssl, found.tls_server_name, found.proxy):
        digest.update(f"{value}\0".encode())
    for name in (found.ssl_ca_cert, found.cert_file, found.key_file):
        with suppress(OSError):  # it may be replaced just now, and is missed when it is used
            digest.update(Path(name).read_bytes() if name else b"")
        digest.update(b"\0")
    return digest.hexdigest()
