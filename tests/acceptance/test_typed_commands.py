import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

import pytest

from nodeagent.cli import main
from tests.acceptance.agent_home import SOON, Home
from tests.doc_blocks import PAGES, ROOT, blocks_of, words_of
from tests.machine_load import stretched
from tests.manifests.rendering import why_not
from tests.simulated_cluster.agent import AgentProcess, command, in_sync, served, until_status

# --- the demo -------------------------------------------------------------------------------------


DEMO = [sys.executable, "-m", "nodeagent", "demo"]


def environment(home: Home) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(home.folder), "PYTHONPATH": str(Path.cwd())}


def left(home: Home) -> list[str]:
    """Files, and processes that were started with a path in the home's folder."""
    found = [str(path) for path in home.folder.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            if f"{home.folder}/na-demo-".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def toured(home: Home) -> str:
    done = subprocess.run(DEMO, env=environment(home), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def test_the_tour(home: Home) -> None:
    shown = toured(home)
    assert shown.count("# true: ") == 7
    assert "is in use by pid 4711711 (train)" in shown
    assert "mig-configs:" in shown
    assert left(home) == []


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)]
)
def test_an_end_in_between(home: Home, number: signal.Signals) -> None:
    """The agent and the MPS daemon, which would outlive it, end with the tour."""
    with subprocess.Popen(DEMO, env=environment(home), stdout=-1, text=True) as tour:
        assert tour.stdout is not None
        read_until("the MPS daemon answers", tour.stdout)
        assert any("nvidia-cuda-mps-control" in each for each in left(home))
        tour.send_signal(number)
        tour.communicate(timeout=stretched(SOON))
    assert tour.returncode == 130
    assert left(home) == []


def read_until(words: str, stream: IO[str]) -> None:
    assert any(words in row for row in stream), f"it ended before {words!r}"


def test_it_takes_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    """It would be another node than the one that is named."""
    assert main(["demo", "--simulate", "t4:1"]) == 2
    assert "--simulate" in capsys.readouterr().err


REPORTS = r"""
set -m
reports() {
    until nodeagent status -o json 2> /dev/null | grep -q "\"phase\": \"$1\""; do sleep 0.1; done
}
"""
PHASES = {  # that each of these commands comes after, "" where no agent runs yet
    "nodeagent plan": ["", "Blocked"],
    "nodeagent status": ["InSync", "Blocked", "Failed"],
    "nodeagent assert": ["InSync"],
}


@pytest.mark.full
def test_its_commands_can_be_typed(home: Home) -> None:
    typed = re.findall(r"^\$ (cat .*?^END|.+?)$", toured(home), re.MULTILINE | re.DOTALL)
    phases = {line: iter(found) for line, found in PHASES.items()}
    script = REPORTS
    for line in typed:
        awaited = phases.get(" ".join(line.split()[:2]), iter([""]))
        if phase := next(awaited):
            script += f"reports {phase}\n"
        script += f"{line}\necho ended: $?\n"
    ended = subprocess.run(
        ["bash", "-c", f"{script}wait"],
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    codes = re.findall(r"^ended: (\d+)$", ended.stdout, re.MULTILINE)
    assert sorted(codes) == ["0"] * (len(typed) - 1) + ["3"], ended.stderr
    assert "is in use by pid 4711711 (train)" in ended.stdout


# --- beside an agent ------------------------------------------------------------------------------


BLOCKS = {
    page.name: found
    for page in PAGES
    if (found := [b for b in blocks_of(page.read_text("utf-8")) if b.info == "sh agent"])
}


@pytest.mark.full
@pytest.mark.parametrize("page", BLOCKS)
@pytest.mark.skipif(os.geteuid() != 0, reason="the page's MPS clients are other users")
def test_commands_typed_beside_an_agent(home: Home, page: str) -> None:
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


PAGE = (ROOT / "docs/annotations.md").read_text(encoding="utf-8")
PLAN = "version: v1\ngpus:\n  - devices: [0]\n    mig: {3g.40gb: 1, 1g.10gb: 3}"
_WHY_NOT = why_not() or ("" if shutil.which("jq") else "jq is not installed")


async def _type(commands: str, folder: Path) -> None:
    shell = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        f"set -euo pipefail\n{commands}",
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "KUBECONFIG": str(folder / "kubeconfig"),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await shell.communicate()
    assert shell.returncode == 0, f"{commands}\n{out.decode()}"


@pytest.mark.full
@pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)
async def test_a_plan_is_given_and_awaited_as_the_page_says(tmp_path: Path) -> None:
    give, *find = (block.body for block in blocks_of(PAGE) if block.info == "sh cluster")
    (tmp_path / "plan.yaml").write_text(f"{PLAN}\n", encoding="utf-8")
    agent = AgentProcess(command("h100-80gb:1", tmp_path), tmp_path)
    async with served(tmp_path) as api, agent:
        await _type(give, tmp_path)
        await until_status(api, in_sync(PLAN))
        await _type("\n".join(find), tmp_path)
