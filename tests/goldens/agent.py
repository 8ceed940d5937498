"""An agent as a process on a simulated node, alone or in a cluster, and what it shows."""

import asyncio
import contextlib
import http.client
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.agent_environment import agent_environment
from tests.folders import end_processes_of
from tests.goldens.session import Session, closed
from tests.machine_load import stretched, wait_until
from tests.simulated_cluster.agent import kubeconfig
from tests.simulated_cluster.api_server import ApiServer

NODE = "gpu-node-0"
SOON = 60.0  # seconds that an agent may take for anything, on a busy machine
# The program on a kernel that counts no waits for a processor: with them an agent's answers say how
# busy this machine is.
PROGRAM = """
import runpy, sys

def refuse(event, arguments):
    if event == "open" and str(arguments[0]).endswith("/schedstat"):
        raise FileNotFoundError

sys.addaudithook(refuse)
runpy.run_module("nodeagent", run_name="__main__", alter_sys=True)
"""


class Cluster:
    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._api = ApiServer()
        self._do(self._api.start())
        self._call(self._api.add_node, NODE)
        (folder / "kubeconfig").write_text(kubeconfig(self._api.url), encoding="utf-8")

    def close(self) -> None:
        self._do(self._api.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def patch(self, patch: str) -> str:
        self._call(self._api.patch_node, NODE, yaml.safe_load(patch))
        return f"node/{NODE} patched\n"

    def node(self) -> str:
        """What the Node shows, without what the API server adds by itself."""
        node: dict[str, Any] = self._call(self._api.node, NODE)
        metadata = node["metadata"]
        annotations = {k: _parsed(v) for k, v in sorted(metadata.get("annotations", {}).items())}
        conditions = [c for c in node["status"]["conditions"] if c["type"] != "Ready"]
        shown = {
            "annotations": annotations,
            "labels": dict(sorted(metadata["labels"].items())),
            "spec": node["spec"],
            "conditions": sorted(conditions, key=lambda condition: str(condition["type"])),
        }
        return yaml.safe_dump(shown, sort_keys=False, width=1000, allow_unicode=True)

    def events(self) -> str:
        keys = ("type", "reason", "message", "action")
        found = [{k: e[k] for k in keys if k in e} for e in self._call(lambda: self._api.events)]
        return yaml.safe_dump(
            sorted(found, key=str), sort_keys=False, width=1000, allow_unicode=True
        )

    def _do(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _call(self, function: Any, *arguments: Any) -> Any:
        async def call() -> Any:
            return function(*arguments)

        return self._do(call())


class Agent:
    """`nodeagent run` with these arguments, in `folder`."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self._folder = folder
        self._log = folder / "agent.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "run", *arguments],
                cwd=folder,
                stderr=log,
                env=agent_environment(),
            )

    def request(self, method: str, path: str, body: str = "") -> str:
        """As `curl -i` over the agent's socket, once it listens; JSON is indented."""
        with self._connection() as connection:
            connection.request(method, path, body.encode() or None)
            answer = connection.getresponse()
            text = answer.read().decode()
        head = "".join(f"{name}: {value}\n" for name, value in sorted(answer.getheaders()))
        if "json" in answer.getheader("Content-Type", ""):
            text = json.dumps(json.loads(text), indent=1, ensure_ascii=False)
        return f"HTTP {answer.status} {answer.reason}\n{head}\n{text}"

    @contextlib.contextmanager
    def _connection(self) -> Iterator[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection("localhost", timeout=SOON)
        with socket.socket(socket.AF_UNIX) as own:
            connection.sock = own
            wait_until(lambda: self._listens(own), said=self._said)
            yield connection

    def _listens(self, own: socket.socket) -> bool:
        assert self._process.poll() is None, self._said()
        return own.connect_ex(f"{self._folder}/run/agent.sock") == 0

    def _said(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(stretched(SOON))

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(stretched(SOON))
        end_processes_of(self._folder)


def _parsed(text: str) -> Any:
    """JSON as what it holds, so that people can read it."""
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return text


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    found = Cluster(folder)
    try:
        yield found
    finally:
        found.close()


class Stage:
    def __init__(self, folder: Path, session: Session, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._session = session
        self._stack = stack
        self._cluster: Cluster | None = None
        self._agent: Agent | None = None

    def repeats(self, line: str) -> bool:
        """Whether it only asks, so that the answer can be waited for."""
        return line.startswith(("curl", "kubectl get", "nodeagent status", "nodeagent mps status"))

    def do(self, line: str) -> str:
        """Run a line; gives what the transcript has of it."""
        words = shlex.split(line)
        match words:
            case ["cluster", "up"]:
                self._cluster = self._stack.enter_context(cluster(self._folder))
                out = ""
            case ["nodeagent", "run", *arguments, "&"]:
                self._agent = Agent(self._folder, arguments)
                self._stack.callback(self._agent.close)
                out = ""
            case ["cp", source, target]:
                text = (self._folder / source).read_bytes()
                new = self._folder / f"{target}.new"
                new.write_bytes(text)
                new.replace(self._folder / target)
                out = ""
            case ["curl", *arguments]:
                out = self._curl(arguments)
            case ["kubectl", *arguments]:
                out = self._kubectl(arguments)
            case ["until", pattern, *command]:
                self._until(pattern, shlex.join(command))
                out = ""
            case ["kill", "-TERM", "%1"]:
                assert self._agent is not None
                out = f"exit code: {self._agent.stop()}\n"
            case _:
                return self._session.transcript(line)
        return f"$ {line}\n{closed(out)}\n"

    def _until(self, pattern: str, line: str) -> None:
        wait_until(
            lambda: re.search(pattern, self.do(line), re.DOTALL),
            said=lambda: f"no {pattern} in {self.do(line)}",
        )

    def _curl(self, arguments: list[str]) -> str:
        assert self._agent is not None, "no agent runs"
        match arguments:
            case [path]:
                return self._agent.request("GET", path)
            case ["-X", method, path]:
                return self._agent.request(method, path)
            case ["-X", method, path, "-d", body]:
                return self._agent.request(method, path, body)
        raise AssertionError(arguments)

    def _kubectl(self, arguments: list[str]) -> str:
        assert self._cluster is not None, "no cluster is up"
        match arguments:
            case ["patch", "node", "-p", patch]:
                return self._cluster.patch(patch)
            case ["get", "node"]:
                return self._cluster.node()
            case ["get", "events"]:
                return self._cluster.events()
        raise AssertionError(arguments)


@contextlib.contextmanager
def stage(folder: Path, session: Session) -> Iterator[Stage]:
    with contextlib.ExitStack() as stack:
        yield Stage(folder, session, stack)
