"""Reads a kubeconfig: the server of a context, and how its user is authorized.

A file whose user has a token, a certificate or a password is read here. The library `kubernetes`,
which takes 22 MiB and a third of a second, reads the others: those whose user is the answer of a
program or of a provider of identities, and those that are unusual or wrong in some way.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeagent.documents.bounded_yaml import read_tree
from nodeagent.errors import DocumentError


@dataclass(frozen=True, slots=True, repr=False)
class Endpoint:
    """An API server and how TLS to it is made, with the content of files rather than their names:
    it is equal as long as no connection to it has to be made anew.

    PEM of its `authority`, empty for those of the system, and of our `certificate` and `key`.
    """

    url: str
    authority: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    verify: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None


def read(text: str, path: Path, context: str | None) -> tuple[Endpoint, str]:
    """The server, and the header that authorizes. Raises whatever a strange file leads to."""
    try:
        document: Any = read_tree(text.encode()).value
        chosen = _named(document["contexts"], context or document["current-context"])["context"]
        cluster = _named(document["clusters"], chosen["cluster"])["cluster"]
        user = _user(document, chosen)
        if not ("exec" in user or "auth-provider" in user):
            return _endpoint(cluster, user, path.parent), _authorization(user, path.parent)
    except (DocumentError, LookupError, TypeError, AttributeError, ValueError):
        pass
    return _read_by_library(path, context)


def _named(items: Any, name: str) -> Any:
    """The first of that name; None where there is none."""
    return next((item for item in items if item["name"] == name), None)


def _user(document: Any, context: Any) -> Any:
    """Empty where the context has none, or one that is not described."""
    name, users = context.get("user"), document.get("users")
    found = _named(users, name) if name and users else None
    return found["user"] if found else {}


def _endpoint(cluster: Any, user: Any, folder: Path) -> Endpoint:
    url = cluster["server"].rstrip("/")
    secure = url.startswith("https")
    return Endpoint(
        url,
        _pem(cluster, "certificate-authority", folder) if secure else b"",
        _pem(user, "client-certificate", folder) if secure else b"",
        _pem(user, "client-key", folder) if secure else b"",
        not cluster.get("insecure-skip-tls-verify", False),
        cluster.get("tls-server-name"),
        cluster.get("proxy-url"),
    )


def _pem(section: Any, name: str, folder: Path) -> bytes:
    """What the section has itself comes before the file that it names."""
    if f"{name}-data" in section:
        return base64.standard_b64decode(section[f"{name}-data"])
    return (folder / section[name]).read_bytes() if name in section else b""


def _authorization(user: Any, folder: Path) -> str:
    token = user.get("token")
    if token is None and "tokenFile" in user:
        token = (folder / user["tokenFile"]).read_text(encoding="utf-8")
    if token:
        return f"Bearer {token}"
    if "username" in user and "password" in user:
        pair = f"{user['username']}:{user['password']}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"
    return ""


def _read_by_library(path: Path, context: str | None) -> tuple[Endpoint, str]:
    from kubernetes.aio import client, config

    found = client.Configuration(host="")
    # In a loop of its own: the library's coroutine reads files and may run a program.
    asyncio.run(
        config.load_kube_config(
            config_file=str(path), context=context, client_configuration=found, persist_config=False
        )
    )
    files = (found.ssl_ca_cert, found.cert_file, found.key_file)
    authority, certificate, key = (Path(name).read_bytes() if name else b"" for name in files)
    return Endpoint(
        str(found.host),
        authority,
        certificate,
        key,
        bool(found.verify_ssl),
        found.tls_server_name,
        found.proxy,
    ), str(found.api_key.get("BearerToken", ""))
