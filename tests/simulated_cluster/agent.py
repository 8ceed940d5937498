"""An agent as a process on simulated GPUs, and the Node through which one speaks with it."""

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import yaml

from tests.agent_environment import agent_environment
from tests.machine_load import stretched
from tests.simulated_cluster.api_server import ApiServer

PLAN = "nodeagent.io/plan"
STATUS = "nodeagent.io/status"
NAME = "gpu-node-0"
LEAVING = 30.0  # seconds for an agent to end


def kubeconfig(url: str, *, token_file: Path | None = None) -> str:
    """A kubeconfig with a token from a file or none. A server's certificate is not verified."""
    name = "nodeagent-test"
    unverified = {"insecure-skip-tls-verify": True} if url.startswith("https") else {}
    user = {"tokenFile": str(token_file)} if token_file else {}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": {"server": url, **unverified}}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        },
        sort_keys=False,
    )


@asynccontextmanager
async def served(folder: Path, *, latency: float = 0.0, **node: Any) -> AsyncIterator[ApiServer]:
    """An API server with the agent's Node, to which the kubeconfig in `folder` leads."""
    async with ApiServer(latency=latency) as api:
        api.add_node(NAME, **node)
        (folder / "kubeconfig").write_text(kubeconfig(api.url))
        yield api


def command(boards: str, folder: Path, node: str = NAME) -> list[str]:
    """The agent on simulated GPUs, with its files and its kubeconfig in `folder`."""
    return [
        *(sys.executable, "-m", "nodeagent", "run", "--simulate", boards),
        *("--kubeconfig", str(folder / "kubeconfig"), "--node-name", node),
        *("--source", "annotation", "--listen", "127.0.0.1:0"),
        *("--run-dir", str(folder / "run"), "--state-dir", str(folder / "state")),
    ]


class AgentProcess:
    """`async with AgentProcess(command(...), folder)`; what it says goes to `folder`/stderr.

    In the end it gets SIGTERM, and KILL if it does not go; `code` is its exit code then.
    """

    def __init__(
        self, command: list[str], folder: Path, *, settings: Mapping[str, str] | None = None
    ) -> None:
        self._command = command
        self._stderr = folder / "stderr"
        self._settings = settings or {}
        self._process: asyncio.subprocess.Process | None = None
        self.code: int | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not running"
        return self._process.pid

    @property
    def resident(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

    def said(self) -> str:
        return self._stderr.read_text(errors="replace")

    async def __aenter__(self) -> Self:
        with self._stderr.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stderr=errors, env=agent_environment(**self._settings)
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        process = self._process
        assert process is not None
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(stretched(LEAVING)):
                self.code = await process.wait()
        except TimeoutError:
            process.kill()
            self.code = await process.wait()


def digest(plan: str) -> str:
    return f"sha256:{hashlib.sha256(plan.encode()).hexdigest()}"


def status(api: ApiServer, node: str = NAME) -> dict[str, Any] | None:
    """What the status annotation says; None where there is none, or no Node."""
    return status_of(next((n for n in api.store.all("nodes") if n["metadata"]["name"] == node), {}))


def status_of(node: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the status annotation of this Node says; None where there is none, or no JSON."""
    text = node.get("metadata", {}).get("annotations", {}).get(STATUS)
    try:
        found = json.loads(text) if text is not None else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def in_sync(plan: str) -> Callable[[dict[str, Any]], bool]:
    """Whether a status says that this plan is what the node is."""
    wanted = digest(plan)
    return lambda status: (status.get("phase"), status.get("digest")) == ("InSync", wanted)


async def until_status(
    api: ApiServer,
    true: Callable[[dict[str, Any]], bool],
    *,
    node: str = NAME,
    seconds: float = 60.0,
) -> dict[str, Any]:
    """Wait, without asking again and again, until the status is so; raises TimeoutError."""
    changes: asyncio.Queue[Any] = asyncio.Queue()
    api.store.watching.add(changes)
    try:
        found = status(api, node)
        async with asyncio.timeout(stretched(seconds)):
            while found is None or not true(found):
                change = await changes.get()
                after = change.after or {}
                if change.plural == "nodes" and after.get("metadata", {}).get("name") == node:
                    found = status_of(after)
    except TimeoutError as error:
        raise TimeoutError(f"not within {seconds} s; the status is {status(api, node)}") from error
    else:
        return found
    finally:
        api.store.watching.discard(changes)
