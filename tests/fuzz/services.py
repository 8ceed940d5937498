"""Readers of what other programs leave or send: kubeconfigs, tokens, the toolkit's CDI documents,
requests over HTTP, systemd's answers.
"""

import base64
import json
from pathlib import Path
from typing import Any

from aiohttp import web

from nodeagent.api.passwords import _credentials as read_header
from nodeagent.api.routes import _Drain as DrainRequest
from nodeagent.api.routes import _read as read_request
from nodeagent.claims.serving.toolkit import NoToolkitEdits, ToolkitEdits
from nodeagent.cluster.client.credentials import InCluster, Kubeconfig, read_endpoint, tls_context
from nodeagent.cluster.client.faults import CredentialsUnusable
from nodeagent.documents.bounded_yaml import read_tree
from nodeagent.mps.launch.service import read_state
from tests.fuzz.documents import both_ways
from tests.fuzz.runs import Parser, Refused
from tests.simulated_cluster.agent import kubeconfig

_AUTHORITY = b"""\
-----BEGIN CERTIFICATE-----
MIIBLjCB4aADAgECAhRD10T+fUHDdWUF2cTkrDiDG+kqzTAFBgMrZXAwDDEKMAgG
A1UEAwwBYTAgFw0yNjExMjQwOTAwMjRaGA8yMTI2MTAzMTA5MDAyNFowDDEKMAgG
A1UEAwwBYTAqMAUGAytlcAMhAA7PbzsiejHQOYMDohAYa0gxd/PoXF+kw/8L/V2j
HjNXo1MwUTAdBgNVHQ4EFgQU3NR7XH66FSiFqlPDWfWEQWw9IR8wHwYDVR0jBBgw
FoAU3NR7XH66FSiFqlPDWfWEQWw9IR8wDwYDVR0TAQH/BAUwAwEB/zAFBgMrZXAD
QQDij3QNmLzzh4ChWU3tMK91s3f+CKr/BRrKAzVSSzIM2nLpLMgpVkZNaMmgob20
VMD/lmHuYpVYqcIvNCV2u34K
-----END CERTIFICATE-----
"""
_PEM = base64.b64encode(_AUTHORITY).decode()
_USERS: tuple[dict[str, Any], ...] = (
    {"token": "secret", "client-certificate-data": _PEM, "client-key-data": _PEM},
    {"username": "me", "password": "secret"},
    {"tokenFile": "kubeconfig"},
)
_CDI: dict[str, Any] = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl", "hostPath": "/dev/nvidiactl", "type": "c"}],
        "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk", "args": ["hook"]}],
        "mounts": [
            {
                "hostPath": "/usr/lib/libcuda.so.1",
                "containerPath": "/usr/lib/libcuda.so.1",
                "options": ["ro", "nosuid", "nodev", "bind"],
            }
        ],
    },
}
_OF_A_KUBECONFIG = 4 << 10  # bytes
_UNIT = b"""\
Type=forking
ActiveState=active
MainPID=4711
Result=success
ExecMainCode=0
ExecMainStatus=0
LoadState=loaded
"""
_DEVICE = (
    b'{"name": "mig1:2:3", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia-caps/c"}]}},'
)


def _kubeconfigs() -> tuple[bytes, ...]:
    """As they are written, and as JSON with users of each kind."""
    plain = kubeconfig("https://[::1]:6443/a")
    document: Any = read_tree(plain).value
    document["clusters"][0]["cluster"]["certificate-authority-data"] = _PEM
    found = [plain]
    for user in _USERS:
        document["users"][0]["user"] = user
        found.append(json.dumps(document))
    return tuple(text.encode() for text in found)


def _kubeconfig(text: bytes, folder: Path) -> None:
    """Small ones: of what is no YAML its library takes seconds to find that out, in a thread."""
    path = folder / "kubeconfig"
    path.write_bytes(text[:_OF_A_KUBECONFIG])
    endpoint = read_endpoint(Kubeconfig(path))
    if endpoint.authority:  # else those of the system are read
        tls_context(endpoint)


def _service_account(text: bytes, folder: Path) -> None:
    """The token, and after a blank line the authority's certificate."""
    token, _, authority = text.partition(b"\n\n")
    (folder / "token").write_bytes(token)
    (folder / "ca.crt").write_bytes(authority)
    where = {"KUBERNETES_SERVICE_HOST": "::1", "KUBERNETES_SERVICE_PORT": "443"}
    tls_context(read_endpoint(InCluster(folder, where)))


def _toolkit(text: bytes, folder: Path) -> None:
    (folder / "nvidia.yaml").write_bytes(text)
    ToolkitEdits((folder,)).read()


def _header(text: bytes, _: Path) -> None:
    if read_header(text.decode("latin-1")) is None:
        raise Refused


def _unit(text: bytes, _: Path) -> None:
    read_state(text.decode("utf-8", "replace"))


def parsers() -> tuple[Parser, ...]:
    document = json.dumps(_CDI).encode()
    basic = b"Basic " + base64.b64encode(b"prometheus:secret")
    call = b'{"device": "GPU-1:3", "timeout": 12.5, "force": true}'
    return (
        Parser("kubeconfig", _kubeconfig, (CredentialsUnusable,), _kubeconfigs()),
        Parser(
            "service account",
            _service_account,
            (CredentialsUnusable,),
            (b"e30.e30.c2ln\n\n" + _AUTHORITY,),
            (b"e30.e30.c2ln\n\n" + _AUTHORITY * 200, b"a" * 1_000_000),
        ),
        Parser(
            "toolkit's CDI document",
            _toolkit,
            (NoToolkitEdits,),
            both_ways(document.decode()),
            (document.replace(b'"devices": [', b'"devices": [' + _DEVICE * 3_500),),
        ),
        Parser(
            "Authorization",
            _header,
            (Refused,),
            (basic,),
            (b"Basic " + b"QUFB" * 2_000, b"Basic" + b" " * 8_000),
        ),
        Parser(
            "request to MPS",
            lambda text, _: read_request(text, DrainRequest),
            (web.HTTPBadRequest,),
            (call,),
            (b"[" * 64_000, b'{"device": ' * 5_000, b"9" * 64_000),
        ),
        Parser("systemctl show", _unit, (KeyError, ValueError), (_UNIT,)),
    )
