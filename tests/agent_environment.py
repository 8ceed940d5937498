"""An agent in a process of its own: its environment, where it may listen, and what it answers."""

import http.client
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ANSWER = 60.0  # seconds that an answer may take
_ROOT = Path(__file__).parents[1]


def agent_environment(**more: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(_ROOT),
        # Nothing in the tests trusts the system's authorities, and aiohttp loads them for 60 ms.
        "SSL_CERT_FILE": os.devnull,
        **more,
    }


def run_command(folder: Path, *arguments: str, boards: str) -> list[str]:
    """`nodeagent run` on a simulated node of a state file; without `boards` on this machine."""
    simulated = ["--simulate", boards, "--state", f"{folder}/node.json"] if boards else []
    folders = ["--run-dir", f"{folder}/run", "--state-dir", f"{folder}/state"]
    plan = ["--plan", f"{folder}/plan.yaml", "--listen", "127.0.0.1:0"]
    return [sys.executable, "-m", "nodeagent", "run", *simulated, *plan, *folders, *arguments]


@contextmanager
def port_kept_free() -> Iterator[int]:
    """A port that can be listened at, and that the kernel gives no other program meanwhile."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as those who listen do
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        yield port


def own_host() -> str:
    """A loopback address that no other process of this machine listens at: a port of 127.0.0.1 that
    is free now may be taken before the program under test has it.
    """
    pid = os.getpid()
    return f"127.{pid >> 16}.{pid >> 8 & 255}.{pid & 255}"


def asked(folder: Path, path: str) -> tuple[int, str]:
    """Status and text of what an agent answers over `folder`/run; raises OSError without one."""
    connection = http.client.HTTPConnection("localhost", timeout=ANSWER)
    with socket.socket(socket.AF_UNIX) as connection.sock:
        connection.sock.settimeout(ANSWER)
        connection.sock.connect(f"{folder}/run/agent.sock")
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
