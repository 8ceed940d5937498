"""Mode changes by the program itself, on drivers of either kind; and each remedy that is printed,
followed once as a person would, leads to the goal.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml
import pytest

from nodeagent.plan.problems import Code
from nodeagent.simulation import SimulatedNode, Switches, simulated
from nodeagent.simulation.state_file import STATE_VARIABLE
from tests.cli.conftest import Program

LAYOUTS = {"a30:1": "{1g.6gb: 2}", "a100-40gb:1": "{1g.5gb: 2}", "h100-80gb:1": "{1g.10gb: 2}"}
KINDS = {
    "at once": Switches(ampere_mode="whenIdle", hopper_mode="whenIdle"),
    "at a reset": Switches(ampere_mode="pending", hopper_mode="pending"),
}


@dataclass(frozen=True)
class Applied:
    code: int
    report: dict[str, Any]
    err: str

    @property
    def problems(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.report["problems"]
        return found

    def done(self) -> list[str]:
        steps = [step for gpu in self.report["gpus"] for step in gpu["steps"]]
        return [step["kind"] for step in steps if step["result"] == "done"]


class Home(Program):
    def __init__(
        self, folder: Path, capsys: pytest.CaptureFixture[str], boards: str, switches: Switches
    ) -> None:
        super().__init__(folder, capsys)
        SimulatedNode(boards, state=self.state, switches=switches).close()

    def apply(
        self, mig: str, *, devices: str = "all", reset: str = "never", own: bool = False
    ) -> Applied:
        plan = self.plan(f"{{devices: {devices}, mig: {mig}}}")
        words = ("apply", "-f", plan, "--reset", reset, "-o", "json", "--state", self.state)
        if not own:
            ended = self(*words)
            return Applied(ended.code, json.loads(ended.out or "{}"), ended.err)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with self.process(*words, **pipes) as process:
            out, err = process.communicate()
        return Applied(process.returncode, json.loads(out or "{}"), err)

    def on_node(self, act: Callable[[SimulatedNode], object]) -> None:
        with SimulatedNode(state=self.state) as node:
            act(node)

    def run(self, commands: list[str]) -> None:
        """The commands that a remedy names, on the simulated node; NVML is open as an agent has it
        until one of them stops that. At its end it is started again.
        """
        turns = iter(("stop", "start"))
        with ExitStack() as agent:
            agent.enter_context(simulated(state=self.state))
            pynvml.nvmlInit()
            agent.callback(pynvml.nvmlShutdown)
            for command in commands:
                program, *words = shlex.split(command)
                if program == "systemctl":
                    assert words == [next(turns), "nodeagent"]
                    agent.close()
                    continue
                assert program == "nvidia-smi"
                subprocess.run(
                    [sys.executable, "-m", "nodeagent.simulation.nvidia_smi", *words],
                    env={**os.environ, STATE_VARIABLE: str(self.state)},
                    check=True,
                    stdout=subprocess.DEVNULL,
                )


# --- drivers of both kinds ------------------------------------------------------------------------


@pytest.mark.parametrize("board", LAYOUTS)
@pytest.mark.parametrize(
    ("kind", "steps"), [("at once", ["setMigMode"]), ("at a reset", ["setMigMode", "resetGpu"])]
)
def test_mode_and_layout_change_in_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], board: str, kind: str, steps: list[str]
) -> None:
    home = Home(tmp_path, capsys, board, KINDS[kind])
    reset = "whenIdle" if kind == "at a reset" else "never"
    done = home.apply(LAYOUTS[board], reset=reset, own=True)
    assert (done.code, done.problems) == (0, []), done.err
    assert done.done() == [*steps, "createInstance", "createInstance"]
    assert home.apply("{}").code == 0
    back = home.apply("disabled", reset=reset)
    assert (back.code, back.problems, back.done()) == (0, [], steps)


# --- remedies -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A plan that cannot be applied yet. `way` is the part of the remedy that is followed."""

    way: str
    code: Code
    mig: str
    board: str = "a100-40gb:1"
    switches: Switches = field(default_factory=Switches)
    before: str = ""
    meanwhile: Callable[[SimulatedNode], object] = lambda _: None


def occupied(place: str) -> Callable[[SimulatedNode], object]:
    return lambda node: node.occupy(place)


def first_device(node: SimulatedNode) -> None:
    instance, compute = next(iter(node.card(0).mig_devices()))
    node.occupy(f"0/{instance.id}/{compute.id}")


RESET, ON, OFF = Code.RESET_REQUIRED, "{1g.5gb: 2}", "disabled"
VIRTUAL = Switches(passthrough=True)
SLOW_H100 = Switches(hopper_mode="pending")
CASES = {
    f"{name}: {case.way}": case
    for name, cases in {
        "mode on": [Case(way, RESET, ON) for way in ("command", "reboot", "setting")],
        "mode off, no instances": [
            Case(way, RESET, OFF, before="enabled") for way in ("command", "reboot", "setting")
        ],
        "mode off, instances": [
            Case(way, RESET, OFF, before=ON) for way in ("command", "reboot", "setting")
        ],
        "mode on, on an H100 that waits": [
            Case("command", RESET, "{1g.10gb: 2}", "h100-80gb:1", SLOW_H100),
            Case("setting", RESET, "{1g.10gb: 2}", "h100-80gb:1", SLOW_H100),
        ],
        "mode off, on an H100 that waits": [
            Case(way, RESET, OFF, "h100-80gb:1", SLOW_H100, "{1g.10gb: 2}")
            for way in ("command", "reboot")
        ],
        "mode on, in a virtual machine": [Case("reboot", RESET, ON, switches=VIRTUAL)],
        "mode off, in a virtual machine": [
            Case("reboot", RESET, OFF, switches=VIRTUAL, before="enabled")
        ],
        "mode off, instances, in a virtual machine": [
            Case("reboot", RESET, OFF, switches=VIRTUAL, before=ON)
        ],
        "mode on, in use": [
            Case("end", Code.IN_USE, "{1g.10gb: 1}", "h100-80gb:1", meanwhile=occupied("0"))
        ],
        "mode off, in use": [
            Case(
                "end", Code.IN_USE, OFF, "h100-80gb:1", before="{1g.10gb: 1}",
                meanwhile=first_device,
            )
        ],
        "an instance in the way": [
            Case(
                "end", Code.IN_USE, "{7g.80gb: 1}", "h100-80gb:1", before="{1g.10gb: 1}",
                meanwhile=first_device,
            )
        ],
        "a GPU that is lost": [
            Case(
                "reboot", Code.GPU_LOST, "{1g.10gb: 2}", "h100-80gb:1",
                meanwhile=lambda node: node.lose(0),
            )
        ],
        "a GPU that needs a reset": [
            Case(
                way, Code.GPU_LOST, "{1g.10gb: 2}", "h100-80gb:1",
                meanwhile=lambda node: node.lose(0, error="RESET_REQUIRED"),
            )
            for way in ("command", "reboot")
        ],
        "a GPU that is held": [
            Case(
                "end", Code.IN_USE, "{1g.10gb: 2}", "h100-80gb:1", before="{1g.10gb: 1}",
                meanwhile=occupied("0"),
            )
        ],
    }.items()
    for case in cases
}  # fmt: skip


def ending(remedy: str) -> Callable[[SimulatedNode], None]:
    """The end of those whom the remedy's command names, or of all where it has none."""

    def end(node: SimulatedNode) -> None:
        named = re.search(r"`kill ([\d ]+)`", remedy)
        assert named or "end what" in remedy
        for pid in map(int, named[1].split()) if named else (None,):
            node.release(pid=pid)

    return end


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_remedy_followed_once_leads_to_the_goal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: Case
) -> None:
    home = Home(tmp_path, capsys, case.board, case.switches)
    if case.before:
        prepared = home.apply(case.before, reset="whenIdle")
        if prepared.code:  # in a virtual machine, say
            home.on_node(lambda node: node.reboot())
            assert home.apply(case.before).code == 0
    home.on_node(case.meanwhile)
    stopped = home.apply(case.mig)
    (problem,) = stopped.problems
    assert problem["code"] == case.code
    assert stopped.code == (3 if case.code is Code.IN_USE else 1)
    remedy, reset = problem["remedy"], "never"
    match case.way:
        case "command":
            home.run(re.findall(r"`((?:nvidia-smi|systemctl) [^`]+)`", remedy))
        case "reboot":
            first, reboot, _ = remedy.partition("reboot")
            assert reboot
            home.run(re.findall(r"first run `(nvidia-smi [^`]+)`, then", first))
            home.on_node(lambda node: node.reboot())
        case "setting":
            assert "`reset: whenIdle`" in remedy
            reset = "whenIdle"
        case _:
            home.on_node(ending(remedy))
    again = home.apply(case.mig, reset=reset)
    assert (again.code, again.problems) == (0, []), f"{remedy}\n{again.report}"
    assert again.report["verdictAfter"] == "inSync"


@pytest.mark.parametrize("reboots", [True, False])
def test_a_gpu_that_another_program_has_open_is_not_reset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reboots: bool
) -> None:
    """The mode waits for it: once that program has ended, or for a reboot, as the remedy says."""
    home = Home(tmp_path, capsys, "a100-40gb:1", Switches())
    with simulated(state=home.state):
        pynvml.nvmlInit()
        waits = home.apply(ON, reset="whenIdle", own=True)
        pynvml.nvmlShutdown()
    assert (waits.code, [p["code"] for p in waits.problems]) == (3, [Code.IN_USE]), waits.report
    assert "end it, or reboot" in waits.problems[0]["remedy"]
    if reboots:
        home.on_node(lambda node: node.reboot())
    assert home.apply(ON, reset="never" if reboots else "whenIdle").code == 0


@pytest.mark.parametrize("how", ["NOT_SUPPORTED", "NO_PERMISSION", "in vain"])
@pytest.mark.parametrize(("before", "mig"), [("", ON), ("enabled", OFF), (ON, OFF)])
def test_a_machine_that_resets_no_gpu_keeps_the_mode_for_its_reboot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, before: str, mig: str
) -> None:
    home = Home(tmp_path, capsys, "a100-40gb:1", Switches(gpu_reset=how))
    if before:
        assert home.apply(before).code == 1
        home.on_node(lambda node: node.reboot())
        assert home.apply(before).code == 0
    for _ in range(2):
        waits = home.apply(mig, reset="whenIdle")
        assert (waits.code, [p["code"] for p in waits.problems]) == (1, [RESET]), waits.report
        assert "reboot this machine" in waits.problems[0]["remedy"]
        state = SimulatedNode(state=home.state).card(0).state
        found = (state.mig, state.pending, len(state.instances))
        assert found == (mig is OFF, mig is ON, 2 if before is ON else 0)
    home.on_node(lambda node: node.reboot())
    assert home.apply(mig).code == 0


@pytest.mark.parametrize(
    ("found", "wrong", "better"),
    [
        (Code.NOT_MIG_CAPABLE, ("{1g.5gb: 1}", "[0, 1]"), ("{1g.5gb: 1}", "[0]")),
        (Code.DOES_NOT_FIT, ("{4g.20gb: 2}", "[0]"), ("{4g.20gb: 1}", "[0]")),
        (Code.UNKNOWN_PROFILE, ("{1g.7gb: 1}", "[0]"), ("{1g.5gb: 1}", "[0]")),
    ],
)
def test_a_document_changed_as_the_remedy_says_is_applied(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    found: Code,
    wrong: tuple[str, str],
    better: tuple[str, str],
) -> None:
    home = Home(tmp_path, capsys, "a100-40gb:1,t4:1", KINDS["at once"])
    refused = home.apply(wrong[0], devices=wrong[1])
    assert refused.code in {1, 2}
    (problem,) = refused.problems
    assert problem["code"] == found
    assert problem["remedy"]
    assert home.apply(better[0], devices=better[1]).code == 0
