"""Who the agent is for the API server and where that is, read from files.

Reads block and belong in a thread. What is read is never printed: its type has no `repr`.

A kubeconfig's user has a token, a certificate, a password, or a program that is asked for one of
the first two. The library `kubernetes` knows providers of identities as well, and is 150 MB.
"""

import asyncio
import base64
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from nodeagent.catalogue import filled, section
from nodeagent.cluster.client.faults import CredentialsUnusable
from nodeagent.documents.bounded_yaml import read_tree
from nodeagent.programs import run_program
from nodeagent.structs import Struct, replace

_DEADLINE = 60.0  # seconds of a program that has credentials
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True, repr=False)
class Endpoint:
    """An API server and the settings of TLS to it, with the content of files, not their names.
    Equal endpoints can use the same connections.

    `authority`, `certificate` and `key` are PEM; without `authority` the system's certificates
    count. `authorization` is the whole header; empty without a token. `renewal` is what people do
    when the server refuses it.
    """

    url: str
    authority: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    verify: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None
    authorization: str = field(default="", compare=False)
    renewal: str = field(default="", compare=False)

    @property
    def server(self) -> str:
        """The address for people, without a user's name, password or path."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.split('/')[0].rpartition('@')[2]}"


@dataclass(frozen=True, slots=True)
class InCluster:
    """The service account that the kubelet mounts into a pod; `environ` names the server."""

    folder: Path = _SERVICE_ACCOUNT
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def read(self) -> Endpoint:
        """Raises CredentialsUnusable."""
        host = self.environ.get("KUBERNETES_SERVICE_HOST", "")
        port = self.environ.get("KUBERNETES_SERVICE_PORT", "")
        if not (host and port):
            raise CredentialsUnusable.of("notInCluster")
        mend = _words("serviceAccount")
        token = _read(self.folder / "token", mend).strip()
        authority = _read(self.folder / "ca.crt", mend)
        if not token or not authority.strip():
            raise CredentialsUnusable(f"the token or ca.crt in {self.folder} is empty")
        url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        return Endpoint(url, authority.encode(), authorization=f"Bearer {token}", renewal=mend)


class Kubeconfig(Struct, frozen=True):
    """A kubeconfig file for an agent of `node`; `context` None takes its current one."""

    path: Path
    context: str | None = None
    node: str = "NODE"

    def read(self) -> Endpoint:
        """Raises CredentialsUnusable."""
        text = _read(self.path, _words("kubeconfig"))
        try:
            endpoint = _read_kubeconfig(text, self)
        except CredentialsUnusable:
            raise
        except Exception as error:  # noqa: BLE001 - a file, and a program's answer, can be anything
            # Its words may repeat a line of the file, and a token with it.
            why = type(error).__name__
            raise CredentialsUnusable.of("noKubeconfig", path=self.path, why=why) from None
        if not endpoint.url:
            raise CredentialsUnusable(f"{self.path} names no server")
        return endpoint


Credentials = InCluster | Kubeconfig


def credentials_of(kubeconfig: Path | None, context: str | None, node: str) -> Credentials:
    """Choose by the settings `kubernetes.kubeconfig` and `kubernetes.context`."""
    return InCluster() if kubeconfig is None else Kubeconfig(kubeconfig, context, node)


def read_endpoint(credentials: Credentials) -> Endpoint:
    """Read everything anew. Raises `CredentialsUnusable`, whose message holds nothing secret."""
    endpoint = credentials.read()
    authorization, url = endpoint.authorization.strip(), endpoint.url
    if not (authorization.isascii() and authorization.isprintable()):
        # Such a header would be refused by an exception that repeats it.
        raise CredentialsUnusable("the token holds characters that no token has")
    if authorization:
        # As for kubectl, credentials come before a user in the server's URL; aiohttp refuses both.
        scheme, _, rest = url.partition("://")
        host, slash, path = rest.partition("/")
        url = f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
    proxy = endpoint.proxy or _proxy_of_environment(url)
    return replace(endpoint, url=url, authorization=authorization, proxy=proxy)


def _proxy_of_environment(url: str) -> str | None:
    with suppress(ValueError):  # the first request says what is wrong with the URL
        server = urlsplit(url)
        if not proxy_bypass(server.hostname or ""):
            return getproxies().get(server.scheme)
    return None


def tls_context(endpoint: Endpoint) -> ssl.SSLContext:
    """Make the context for TLS to the server, in 20 ms. Raises CredentialsUnusable."""
    try:
        context = ssl.create_default_context(cadata=endpoint.authority.decode("ascii", "ignore"))
        if endpoint.certificate:
            with _in_memory(endpoint.certificate) as certificate, _in_memory(endpoint.key) as key:
                context.load_cert_chain(certificate, key if endpoint.key else None)
    except OSError as error:  # SSLError is one
        what = f"the certificates for {endpoint.server} cannot be used"
        raise CredentialsUnusable(what) from error
    if not endpoint.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Yield a path at which OpenSSL reads `content`, which is on no disk."""
    with os.fdopen(os.memfd_create("credentials"), "wb", buffering=0) as file:
        file.write(content)
        yield f"/proc/self/fd/{file.fileno()}"


def _read(path: Path, mend: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise CredentialsUnusable.of("credentialsUnread", path=path, why=why, mend=mend) from error


def _words(kind: str, **facts: object) -> str:
    """What mends credentials of this kind."""
    return filled(section("credentials")[kind], facts)


# --- a kubeconfig ---------------------------------------------------------------------------------


def _read_kubeconfig(text: str, file: Kubeconfig) -> Endpoint:
    """Raises CredentialsUnusable, or anything at all where the file is not as it should be."""
    document: Any = read_tree(text.encode()).value
    name = file.context or document["current-context"]
    chosen = _named(document["contexts"], name)["context"]
    cluster = _named(document["clusters"], chosen["cluster"])["cluster"]
    user, folder = _user(document, chosen), file.path.parent
    if user.get("auth-provider"):
        raise CredentialsUnusable.of("authProvider", path=file.path, node=file.node)
    kind = next((kind for kind in ("exec", "token", "tokenFile") if user.get(kind)), "other")
    token = folder / str(user.get("tokenFile", "TOKEN"))
    renewal = _words(kind, path=file.path, node=file.node, token=token)
    if program := user.get("exec"):
        user = user | _answer(program, file.path)
    return _endpoint(cluster, user, folder, renewal)


def _answer(program: Any, path: Path) -> dict[str, Any]:
    """What a program of the kubeconfig says that the user has. Raises as `_read_kubeconfig`."""
    name, version = program["command"], program["apiVersion"]
    asked = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    given = {one["name"]: one["value"] for one in program.get("env") or ()}
    environ = {**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
    found = str(path.absolute().parent / name) if "/" in name else name
    command = [found, *(program.get("args") or ())]
    case = "credentialsProgram"
    try:
        status, said, _ = asyncio.run(
            run_program(command, environ, deadline=_DEADLINE, stderr=asyncio.subprocess.DEVNULL)
        )
        if not status:
            return _credentials(json.loads(said), version)
        why = f"exit code {status}"
    except TimeoutError:
        why = f"it does not end within {_DEADLINE:g} s"
    except OSError as error:
        why = str(error.strerror)
        case = "noCredentialsProgram"
    except (AttributeError, LookupError, TypeError, ValueError):
        why = f"its answer is no ExecCredential of {version} with credentials"
    # What it printed may hold what is secret.
    raise CredentialsUnusable.of(case, program=name, path=path, why=why)


def _credentials(answer: Any, version: str) -> dict[str, Any]:
    """The keys of a user. Raises ValueError and the like for what is no answer."""
    given, found = answer["status"], {}
    for kind in ("Certificate", "Key"):
        if pem := given.get(f"client{kind}Data"):
            found[f"client-{kind.lower()}-data"] = base64.b64encode(pem.encode())
    if token := given.get("token"):
        found["token"] = token
    if answer["apiVersion"] != version or not found:
        raise ValueError
    return found


def _named(items: Any, name: str) -> Any:
    """The first of that name; None where there is none."""
    return next((item for item in items if item["name"] == name), None)


def _user(document: Any, context: Any) -> Any:
    """The user's entry; empty where the context has no user, or one without an entry."""
    name, users = context.get("user"), document.get("users")
    found = _named(users, name) if name and users else None
    return (found and found["user"]) or {}


def _endpoint(cluster: Any, user: Any, folder: Path, renewal: str) -> Endpoint:
    url = cluster["server"].rstrip("/")
    secure = url.startswith("https")
    return Endpoint(
        url,
        _pem(cluster, "certificate-authority", folder, renewal) if secure else b"",
        _pem(user, "client-certificate", folder, renewal) if secure else b"",
        _pem(user, "client-key", folder, renewal) if secure else b"",
        not cluster.get("insecure-skip-tls-verify", False),
        cluster.get("tls-server-name") or None,
        cluster.get("proxy-url") or None,
        _authorization(user, folder, renewal),
        renewal,
    )


def _pem(part: Any, name: str, folder: Path, mend: str) -> bytes:
    """The PEM text in the part itself, or else that of the file that it names."""
    if data := part.get(f"{name}-data"):
        return base64.standard_b64decode(data)
    return _read(folder / part[name], mend).encode() if part.get(name) else b""


def _authorization(user: Any, folder: Path, mend: str) -> str:
    token = user.get("token")
    if not token and user.get("tokenFile"):
        token = _read(folder / user["tokenFile"], mend)
    if token:
        return f"Bearer {token}"
    if "username" in user and "password" in user:
        pair = f"{user['username']}:{user['password']}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"
    return ""
