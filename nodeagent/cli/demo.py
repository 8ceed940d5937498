"""`nodeagent demo`: a tour of the program on a simulated node.

It runs the program itself, one command after the other, and goes on when the agent reports what was
claimed. What is shown after `$` can be typed by hand, in this order.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeagent.cli.agent_client import AgentAddress, AgentUnreachable, get
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import Output
from nodeagent.errors import NodeagentError, UsageError
from nodeagent.terminal.page import BLANK, Span, Tone, line

Status = Mapping[str, Any]  # as /v1/status has it

_PROGRAM = (sys.executable, "-m", "nodeagent")
_NODE = "--simulate h100-80gb:2 --state node.json"
_SETTINGS = "NODEAGENT_KUBERNETES_USE=never NODEAGENT_STATE_DIR=$PWD NODEAGENT_RUN_DIR=$PWD/run"
_PID = 4711711  # no real process has it
_TIMEOUT = 60.0  # seconds for a command, and for the agent to report what is claimed
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PLAN = """\
version: v1
gpus:
  - devices: [0]
    mig: {{{slices}}}
  - devices: [1]
    {other}
"""


def run_demo(options: Namespace, output: Output) -> ExitCode:
    """Take the tour; raises NodeagentError where the program does not do what is claimed."""
    if options.simulate is not None or options.state is not None or not output.is_text:
        raise UsageError.of("demoHasNode")
    for number in _ENDS:
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="na-demo-") as name:
        tour = _Tour(Path(name), output)
        try:
            _take(tour)
        except BaseException:
            tour.abandon()
            raise
    return ExitCode.DONE


def _take(tour: _Tour) -> None:
    tour.say("A node with two simulated H100, in a folder of its own.")
    tour.show('cd "$(mktemp -d)"; chmod 755 .; touch settings.yaml')
    tour.show(f"export {_SETTINGS}")
    if Path(shutil.which("nodeagent") or "").parent != Path(sys.executable).parent:
        tour.show(f'nodeagent() {{ {shlex.join(_PROGRAM)} "$@"; }}')
    tour.say("A plan says what each GPU should be: GPU 0 divided, GPU 1 shared by MPS.")
    shared = f"mps: {{user: {os.geteuid() or 1000}, replicas: 2}}"
    tour.write(_PLAN.format(slices="3g.40gb: 1, 1g.10gb: 4", other=shared))
    tour.say("The steps to it, and why. Nothing is touched.")
    tour.command(f"plan -f plan.yaml {_NODE}")
    tour.say("The agent takes them, and keeps the node that way.")
    tour.start(f"run {_NODE} --plan plan.yaml --settings settings.yaml --listen 127.0.0.1:0")
    before = tour.until(
        "the node is as the plan says, and the MPS daemon answers",
        lambda s: s["phase"] == "InSync" and [d["state"] for d in s["mps"]] == ["Ready"],
    )
    tour.command("status")
    tour.command("mps status")
    tour.say("A program starts to use the largest slice.")
    tour.command(f"simulate occupy 0:4 --pid {_PID} --command train --state node.json")
    tour.say("A plan that would destroy this slice is blocked, for the agent and for commands.")
    tour.write(_PLAN.format(slices="7g.80gb: 1", other="mig: disabled"))
    blocked = tour.until(
        f"the plan is blocked, and pid {_PID} is named",
        lambda s: s["phase"] == "Blocked" and str(_PID) in json.dumps(s["problems"]),
    )
    tour.check("no slice of that GPU was touched", _slices(blocked) == _slices(before))
    tour.until("the other GPU did not wait: its MPS daemon is gone", lambda s: not s["mps"])
    tour.command("plan -f plan.yaml --state node.json", code=ExitCode.BLOCKED)
    tour.command("status")
    tour.say("The program ends, and the agent continues.")
    tour.command("simulate release 0:4 --state node.json")
    tour.until(
        "the node is as the plan says: one slice of the whole GPU",
        lambda s: s["phase"] == "InSync" and len(_slices(s)) == 1,
    )
    tour.command("assert -f plan.yaml --state node.json")
    tour.say("GPU 1 becomes unhealthy: its driver reports XID 79.")
    tour.command("simulate xid 1 79 --state node.json")
    tour.until(
        "GPU 1 is reported unhealthy, and GPU 0 healthy",
        lambda s: [gpu["health"]["status"] for gpu in s["gpus"]] == ["healthy", "unhealthy"],
    )
    tour.command("status")
    tour.say("The node as it is, as a document for nvidia-mig-parted.")
    tour.command("export --format mig-parted --state node.json")
    tour.end()


def _slices(status: Status) -> list[str]:
    return [instance["uuid"] for instance in status["gpus"][0].get("instances", ())]


class _Tour:
    """Shows commands, runs them in `folder`, and checks what is claimed."""

    def __init__(self, folder: Path, output: Output) -> None:
        folder.chmod(0o755)  # the MPS daemon is another user's
        (folder / "settings.yaml").touch()  # none of those of the machine
        self._folder, self._output = folder, output
        self._agents: list[subprocess.Popen[bytes]] = []  # at most one
        others = {n: v for n, v in os.environ.items() if not n.startswith("NODEAGENT_")}
        ours = dict(each.split("=") for each in _SETTINGS.replace("$PWD", str(folder)).split())
        # In groups of their own, so that Ctrl-C is for the tour alone.
        self._process: dict[str, Any] = {"cwd": folder, "env": others | ours, "process_group": 0}

    def say(self, sentence: str) -> None:
        self._output.page([BLANK, line(Span(f"# {sentence}", Tone.TITLE))])

    def show(self, command: str) -> None:
        """A command as it can be typed."""
        self._output.page(line(row) for row in f"$ {command}".splitlines())

    def write(self, plan: str) -> None:
        self.show(f"cat > plan.yaml <<'END'\n{plan}END")
        (self._folder / "plan.yaml").write_text(plan, encoding="utf-8")

    def command(self, words: str, *, code: ExitCode = ExitCode.DONE) -> None:
        """Run the program, which prints for itself; raises NodeagentError for another exit code."""
        self.show(f"nodeagent {words}")
        if (found := self._run(words)) != code:
            raise NodeagentError(f"nodeagent {words}: it ended with {found} and not {code}")

    def start(self, words: str) -> None:
        """Start the agent, which runs beside the commands that follow."""
        self.show(f"nodeagent {words} 2> agent.log &")
        with (self._folder / "agent.log").open("wb") as log:
            command = [*_PROGRAM, *shlex.split(words)]
            self._agents.append(subprocess.Popen(command, **self._process, stderr=log))

    def until(self, claim: str, holds: Callable[[Status], bool]) -> Status:
        """The agent's status once the claim holds; raises NodeagentError when it does not."""
        address = AgentAddress(self._folder / "run/agent.sock", None)
        deadline = time.monotonic() + _TIMEOUT
        while True:
            status: Status = {}
            with suppress(AgentUnreachable):
                status = get(address, "/v1/status")
            held = "gpus" in status and holds(status)
            ended = any(agent.poll() is not None for agent in self._agents)
            if held or ended or time.monotonic() > deadline:
                self.check(claim, held)
                return status
            time.sleep(0.1)

    def check(self, claim: str, held: bool) -> None:
        """Report a claim that held; raises NodeagentError for another."""
        if not held:
            log = (self._folder / "agent.log").read_text(encoding="utf-8").splitlines()
            raise NodeagentError(f"this is false: {claim}", remedy=" ".join(log[-1:]))
        self._output.page([line(Span(f"# true: {claim}", Tone.GOOD))])

    def end(self) -> None:
        self.say("The agent ends in an orderly way; the instances that it made stay.")
        self.show("kill %1")
        for agent in self._agents:
            agent.terminate()
            self.check("the agent ended with exit code 0", agent.wait(_TIMEOUT) == 0)

    def abandon(self) -> None:
        """End everything, at whatever point: MPS daemons outlive their agent."""
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)
        for agent in self._agents:
            agent.kill()
            agent.wait()
            plan = "{version: v1, gpus: [{devices: all, mig: disabled}]}"
            (self._folder / "plan.yaml").write_text(plan, encoding="utf-8")
            nowhere = subprocess.DEVNULL
            self._run("apply -f plan.yaml --state node.json", stdout=nowhere, stderr=nowhere)

    def _run(self, words: str, **streams: Any) -> int:
        command = [*_PROGRAM, *shlex.split(words)]
        return subprocess.call(command, **self._process, **streams, timeout=_TIMEOUT)
