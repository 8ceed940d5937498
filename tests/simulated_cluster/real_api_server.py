"""A real kube-apiserver with its etcd, from the folder that KUBEBUILDER_ASSETS names.

The same contract tests run against it as against our own server; where the two differ, the real
one is right.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from tests.agent_environment import own_host
from tests.machine_load import wait_until

TOKEN = "token-of-the-tests"
STRANGERS_TOKEN = "token-of-a-stranger"  # of a user without any right
USUAL_FOLDER = "/usr/local/kubebuilder/bin"

# Runs a program again whenever it ends; SIGUSR1 kills it (below nohup a shell cannot trap SIGHUP),
# SIGTERM ends both. So that a restart makes no new process of the tests' own, which they would take
# for one that a test left.
AGAIN = """
trap 'kill -KILL $child' USR1
trap 'kill $child; wait $child; exit 0' TERM
while :; do
  "$0" "$@" &
  child=$!
  wait $child
  wait $child
done
"""


def why_not() -> str:
    """Why there is no real server to run; empty when there is one."""
    folder = Path(os.environ.get("KUBEBUILDER_ASSETS", USUAL_FOLDER))
    missing = [name for name in ("etcd", "kube-apiserver") if not (folder / name).is_file()]
    if missing:
        return f"KUBEBUILDER_ASSETS: no {' and no '.join(missing)} in {folder}"
    if shutil.which("openssl") is None:
        return "no openssl to make the service account key with"
    return ""


class RealApiServer:
    """Both processes; `restart` starts another API server on the same etcd and port."""

    token = TOKEN

    def __init__(self, folder: Path) -> None:
        self._assets = Path(os.environ.get("KUBEBUILDER_ASSETS", USUAL_FOLDER))
        self._folder = folder
        self._host = own_host()
        self._etcd_port, self._peer_port, self._port = (self._free_port() for _ in range(3))
        self._etcd: subprocess.Popen[bytes] | None = None
        self._api: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"https://{self._host}:{self._port}"

    def kubectl(self, *arguments: str, given: Any = None) -> str:
        """What kubectl, as the administrator, says of an error, else "". `given` is its input."""
        access = (f"--server={self.url}", f"--token={self.token}", "--insecure-skip-tls-verify")
        done = subprocess.run(
            ["kubectl", "--kubeconfig=/dev/null", *access, *arguments],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stderr if done.returncode else ""

    def restart(self) -> None:
        """Kill the API server and await another; takes some seconds and blocks."""
        assert self._api is not None, "not running"
        self._api.send_signal(signal.SIGUSR1)
        self._await(ready=False)
        self._await(ready=True)

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Start both, end both; blocks."""
        key = self._folder / "service-account.key"
        subprocess.run(
            ["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True
        )
        (self._folder / "tokens.csv").write_text(
            f'{TOKEN},tester,1,"system:masters"\n{STRANGERS_TOKEN},stranger,2\n'
        )
        try:
            self._etcd = self._started(["etcd", *self._etcd_flags()])
            self._api = self._started(["kube-apiserver", *self._api_flags()], again=True)
            self._await(ready=True)
            yield self
        finally:
            for process in (self._api, self._etcd):
                if process is not None:
                    process.terminate()
                    process.wait()

    def _started(self, command: list[str], *, again: bool = False) -> subprocess.Popen[bytes]:
        program, *flags = command
        shell = ["sh", "-c", AGAIN] if again else []
        with (self._folder / f"{program}.log").open("ab") as log:
            return subprocess.Popen(
                [*shell, str(self._assets / program), *flags],
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )

    def _etcd_flags(self) -> list[str]:
        clients, peers = (f"http://{self._host}:{p}" for p in (self._etcd_port, self._peer_port))
        return [
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",
        ]

    def _api_flags(self) -> list[str]:
        key = self._folder / "service-account.key"
        return [
            f"--etcd-servers=http://{self._host}:{self._etcd_port}",
            f"--bind-address={self._host}",
            f"--advertise-address={self._host}",
            f"--secure-port={self._port}",
            f"--cert-dir={self._folder / 'certificates'}",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--allow-privileged",  # for the DaemonSet
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://127.0.0.1",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        ]

    def _await(self, *, ready: bool) -> None:
        log = self._folder / "kube-apiserver.log"
        wait_until(
            lambda: self._is_ready() == ready, said=lambda: log.read_text(errors="replace")[-2000:]
        )

    def _is_ready(self) -> bool:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        headers = {"Authorization": f"Bearer {TOKEN}"}
        request = urllib.request.Request(f"{self.url}/readyz", headers=headers)
        with (
            contextlib.suppress(OSError),  # all of urllib's errors are
            urllib.request.urlopen(request, context=context, timeout=30),
        ):
            return True
        return False

    def _free_port(self) -> int:
        with socket.socket() as probe:
            probe.bind((self._host, 0))
            port: int = probe.getsockname()[1]
            return port
