"""Plays an episode on a machine with real processes, and then ends all faults, as
`tests.campaign.drive` does on the machine's own time.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import assert_never

from tests.campaign import invariants, node_actions, processes
from tests.campaign.episode import (
    Action,
    BadPlan,
    Damage,
    EndFaults,
    Episode,
    Fault,
    Foreign,
    FullDisk,
    Hang,
    JumpClock,
    Kill,
    Leave,
    Lose,
    Occupy,
    Pause,
    Plan,
    Reboot,
    Recover,
    Restart,
    Signal,
    Xid,
)
from tests.campaign.outcomes import Outcome
from tests.campaign.real.machine import Machine

MOST = 120.0  # seconds from the end of all faults until the node is what its plan says
_OFTEN = 0.1  # seconds between looks whether it is
_CHANGE = 0.01  # seconds for which each change before a kill counts


def play(episode: Episode) -> Outcome:
    """Play it to its first violation."""
    outcome = Outcome(episode)
    folder = Path(tempfile.mkdtemp(prefix="day-", dir="/tmp"))  # sockets' paths are short
    folder.chmod(0o755)  # daemons run as another user
    machine = Machine(folder, episode.boards)
    try:
        player = Player(machine)
        machine.start()
        for step in episode.steps:
            outcome.actions[type(step.action).__name__] += 1
            player.act(step.action)
            machine.run(step.seconds)
            if machine.violations:
                break
        else:
            outcome.converged = player.end()
    finally:
        machine.close()
        shutil.rmtree(folder, ignore_errors=True)
    outcome.violations = machine.violations
    return outcome


class Player:
    """Acts on one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._node = machine.node
        self._plan = Plan(tuple({} for _ in machine.node.cards))  # the newest that is one
        self._is_written = False

    def act(self, action: Action) -> None:  # noqa: C901, PLR0912  # one case for each kind
        """Do it, at once."""
        machine, node = self._machine, self._node
        match action:
            case Plan() | BadPlan():
                self._write(action)
            case Occupy(device):
                machine.occupy(device)
            case Leave(number):
                machine.leave(number)
            case Fault(function, code, times, skip, applied):
                node.inject(function, error=code, times=times, skip=skip, applied=applied)
                machine.touch()
            case Hang(function, skip):
                node.inject(function, hang=True, skip=skip)
                machine.touch()
            case EndFaults():
                node.clear_faults()
                machine.touch()
            case Lose(gpu, code):
                node.lose(gpu, error=code)
                machine.touch()
            case Recover(gpu):
                self._recover(gpu)
            case Xid(gpu, number):
                node.xid(gpu, number)
            case Foreign(gpu, create, number):
                node_actions.change_behind_its_back(node, gpu, number, create=create)
                machine.touch()
            case Kill(changes, down):
                machine.run(changes * _CHANGE)
                machine.kill()
                machine.run(down)
                machine.start()
            case Pause(seconds):
                machine.pause(seconds)
            case Restart():
                machine.stop()
                machine.start()
            case Reboot():
                self._reboot()
            case Damage(directory, how, number):
                with suppress(OSError):  # the agent writes there at the same time
                    node_actions.damage(machine.home.folder / directory, how, number)
            case Signal(name, number):
                self._signal(signal.Signals[name], number)
            case JumpClock() | FullDisk():
                pass  # the clock and the disk are those of the whole machine
            case _:
                assert_never(action)

    def end(self) -> float:
        """All faults end, and all who use anything; the seconds until all is as planned."""
        machine, node = self._machine, self._node
        machine.end_users()
        node.clear_faults()
        for card in node.cards:
            self._recover(card.index)
        if not self._is_written:
            self._write(self._plan)
        machine.touch()
        began = time.monotonic()
        while machine.in_sync != self._plan and not machine.violations:
            machine.run(_OFTEN)
            if time.monotonic() - began > MOST:
                wrong = "; ".join(machine.differences(self._plan))
                machine.violate(invariants.NEVER, f"{machine.phase} after {MOST:g} s: {wrong}")
        seconds = time.monotonic() - began
        if not machine.violations:
            machine.stop()
            machine.judge_rest(self._plan)
        return seconds

    # --- what is done -----------------------------------------------------------------------------

    def _write(self, plan: Plan | BadPlan) -> None:
        machine = self._machine
        self._is_written = isinstance(plan, Plan)
        if isinstance(plan, Plan):
            self._plan = plan
            machine.wants(plan)
        node_actions.write_plan(machine.home.plan, plan.text)
        machine.touch()

    def _recover(self, gpu: int) -> None:
        if self._node.cards[gpu].state.failure:
            self._machine.end_users(gpu)
            self._node.reset(gpu)
            self._machine.touch()

    def _reboot(self) -> None:
        machine = self._machine
        machine.kill()
        machine.end_users()
        processes.end_all()
        self._node.reboot()
        shutil.rmtree(machine.home.folder / "run", ignore_errors=True)
        machine.touch()
        machine.start()

    def _signal(self, number: signal.Signals, which: int) -> None:
        found = processes.daemons(self._machine.home.folder)
        pids = [pid for _, pids in sorted(found.items()) for pid in pids]
        if pids:
            processes.send(pids[which % len(pids)], number)
            self._machine.touch()
