"""What the pages have typed beside an agent, typed beside one."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import ExitStack

import pytest

from tests.acceptance.agent_home import SOON, Home
from tests.doc_blocks import PAGES, ROOT, blocks_of, words_of
from tests.machine_load import stretched

BLOCKS = {
    page.name: found
    for page in PAGES
    if (found := [b for b in blocks_of(page.read_text("utf-8")) if b.info == "sh agent"])
}


@pytest.mark.full
@pytest.mark.parametrize("page", BLOCKS)
@pytest.mark.skipif(os.geteuid() != 0, reason="the page's MPS clients are other users")
def test_commands_typed_beside_an_agent(home: Home, page: str) -> None:
    """The agents of a page get in sync, and each command ends with 0 or goes on until Ctrl-C."""
    home.settings = {"NODEAGENT_API_LISTEN": "127.0.0.1:0", "PYTHONUNBUFFERED": "1"}
    (home.folder / "examples").symlink_to(ROOT / "examples")
    (home.folder / "na").mkdir(mode=0o755)
    _end(home, "apply -f examples/plan.yaml --simulate h100-80gb:2 --state node.json")
    for block in BLOCKS[page]:
        with ExitStack() as begun:
            for line in block.lines:
                command = line.removeprefix("nodeagent ").replace("/tmp/na/", f"{home.folder}/na/")
                if command.startswith("run "):
                    _start_agent(home, command)
                elif command.startswith("simulate client ") or "--watch" in command:
                    process = begun.enter_context(_begin(home, command))
                    begun.callback(process.kill)
                    assert process.stdout is not None
                    assert process.stdout.readline(), line
                    assert process.poll() is None, line
                else:
                    _end(home, command)
    home.stop(signal.SIGTERM)


def _start_agent(home: Home, command: str) -> None:
    if home.agent is not None:
        home.stop(signal.SIGTERM)
    with (home.folder / "stderr").open("ab") as errors:
        words, _ = words_of(command)
        home.agent = subprocess.Popen(
            home.command(*words), cwd=home.folder, env=home.environment, stderr=errors
        )
    home.until(lambda: home.status().get("phase") == "InSync")


def _begin(home: Home, command: str) -> subprocess.Popen[str]:
    words, _ = words_of(command)
    return subprocess.Popen(
        home.command(*words),
        cwd=home.folder,
        env=home.environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def _end(home: Home, command: str) -> None:
    with _begin(home, command) as process:
        out, _ = process.communicate(timeout=stretched(SOON))
    assert process.returncode == 0, (command, out)
