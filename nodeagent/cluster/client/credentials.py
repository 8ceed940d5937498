"""Who the agent is for the API server and where that is, read from files.

Reads block and belong in a thread. What is read is never printed: its types have no `repr`.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from nodeagent.cluster.client import kubeconfig
from nodeagent.cluster.client.faults import CredentialsUnusable
from nodeagent.cluster.client.kubeconfig import Endpoint

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class InCluster:
    """The service account that the kubelet mounts into a pod; `environ` names the server."""

    folder: Path = _SERVICE_ACCOUNT
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def read(self) -> tuple[Endpoint, str]:
        """The server, and the header that authorizes; raises CredentialsUnusable."""
        host = self.environ.get("KUBERNETES_SERVICE_HOST", "")
        port = self.environ.get("KUBERNETES_SERVICE_PORT", "")
        if not (host and port):
            raise CredentialsUnusable(
                "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set",
                remedy="outside a pod, name a kubeconfig file",
            )
        token = _read(self.folder / "token").strip()
        authority = _read(self.folder / "ca.crt")
        if not token or not authority.strip():
            raise CredentialsUnusable(f"the token or ca.crt in {self.folder} is empty")
        url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        return Endpoint(url, authority.encode()), f"Bearer {token}"


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """A kubeconfig file; `context` None takes its current one."""

    path: Path
    context: str | None = None

    def read(self) -> tuple[Endpoint, str]:
        """As that of InCluster."""
        text = _read(self.path)
        try:
            endpoint, authorization = kubeconfig.read(text, self.path, self.context)
        except Exception as error:  # noqa: BLE001 - the library trips in every way over strange files
            # Its words may repeat a line of the file, and a token with it.
            raise CredentialsUnusable(
                f"{self.path} is not a usable kubeconfig ({type(error).__name__})",
                remedy=f"try: kubectl --kubeconfig {self.path} version",
            ) from None
        if not endpoint.url:
            raise CredentialsUnusable(f"{self.path} names no server")
        return endpoint, authorization


Credentials = InCluster | Kubeconfig


def credentials_of(kubeconfig: Path | None, context: str | None) -> Credentials:
    """As the settings `kubernetes.kubeconfig` and `kubernetes.context` say."""
    return InCluster() if kubeconfig is None else Kubeconfig(kubeconfig, context)


@dataclass(frozen=True, slots=True, repr=False)
class Identity:
    """What was read. `authorization` is the whole header; empty without a token."""

    endpoint: Endpoint
    authorization: str

    @property
    def server(self) -> str:
        """The address for people, without a user's name, password or path."""
        scheme, _, rest = self.endpoint.url.partition("://")
        return f"{scheme}://{rest.split('/')[0].rpartition('@')[2]}"


def read_identity(credentials: Credentials) -> Identity:
    """Read everything anew. Raises `CredentialsUnusable`, whose message holds nothing secret."""
    endpoint, authorization = credentials.read()
    authorization = authorization.strip()
    if not (authorization.isascii() and authorization.isprintable()):
        # Such a header would be refused by an exception that repeats it.
        raise CredentialsUnusable("the token holds characters that no token has")
    if authorization:
        # As for kubectl: they come before a user in the server's URL. aiohttp refuses to have both.
        scheme, _, rest = endpoint.url.partition("://")
        host, slash, path = rest.partition("/")
        endpoint = replace(endpoint, url=f"{scheme}://{host.rpartition('@')[2]}{slash}{path}")
    return Identity(endpoint, authorization)


def tls_context(identity: Identity) -> ssl.SSLContext:
    """What TLS to the server takes, made in 20 ms. Raises CredentialsUnusable."""
    endpoint = identity.endpoint
    try:
        context = ssl.create_default_context(cadata=endpoint.authority.decode("ascii", "ignore"))
        if endpoint.certificate:
            with _in_memory(endpoint.certificate) as certificate, _in_memory(endpoint.key) as key:
                context.load_cert_chain(certificate, key if endpoint.key else None)
    except OSError as error:  # SSLError is one
        raise CredentialsUnusable(
            f"the certificates for {identity.server} cannot be used"
        ) from error
    if not endpoint.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """A path by which OpenSSL reads it, that leads to no disk."""
    with os.fdopen(os.memfd_create("credentials"), "wb", buffering=0) as file:
        file.write(content)
        yield f"/proc/self/fd/{file.fileno()}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "not text"
        remedy = "check kubernetes.kubeconfig, or the pod's service account"
        raise CredentialsUnusable(f"{path} cannot be read: {words}", remedy=remedy) from error
