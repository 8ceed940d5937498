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
    AddPod,
    BadPlan,
    ClusterAction,
    Damage,
    DeletePod,
    EndFaults,
    Episode,
    Fault,
    Foreign,
    FullDisk,
    Hang,
    Ignore,
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
    SpoilApi,
    SpoilKubelet,
    Xid,
)
from tests.campaign.outcomes import Outcome
from tests.campaign.real.cluster import Cluster
from tests.campaign.real.machine import Machine

MOST = 120.0  # seconds from the end of all faults until the node is what its plan says
_OFTEN = 0.1  # seconds between looks whether it is
_CHANGE = 0.01  # seconds for which each change before a kill counts


def play(episode: Episode) -> Outcome:
    """Play it to its first violation."""
    outcome = Outcome(episode)
    folder = Path(tempfile.mkdtemp(prefix="day-", dir="/tmp"))  # sockets' paths are short
    folder.chmod(0o755)  # daemons run as another user
    machine = Machine(folder, episode.boards, has_cluster=episode.has_cluster)
    try:
        player = Player(machine)
        machine.start()
        for step in episode.steps:
            outcome.actions[type(step.action).__name__] += 1
            player.act(step.action)
            machine.run(step.seconds)
            if machine.judge.violations:
                break
        else:
            outcome.converged = player.end()
    finally:
        machine.close()
        shutil.rmtree(folder, ignore_errors=True)
    outcome.actions["(claims prepared)"] = len(machine.judge.prepared)
    outcome.violations = machine.judge.violations
    return outcome


class Player:
    """Acts on one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._node = machine.node
        ours = machine.node.cards[:-1] if machine.cluster else machine.node.cards
        self._plan = Plan(tuple({} for _ in ours))  # the newest that is one
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
                machine.judge.touch()
            case Hang(function, skip):
                node.inject(function, hang=True, skip=skip)
                machine.judge.touch()
            case EndFaults():
                node.clear_faults()
                if machine.cluster:
                    machine.cluster.recover()
                machine.judge.touch()
            case Lose(gpu, code):
                node.lose(gpu, error=code)
                machine.judge.touch()
            case Recover(gpu):
                self._recover(gpu)
            case Xid(gpu, number):
                node.xid(gpu, number)
            case Foreign(gpu, create, number):
                node_actions.change_behind_its_back(node, gpu, number, create=create)
                machine.judge.touch()
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
            case SpoilApi() | SpoilKubelet() | AddPod() | DeletePod():
                if machine.cluster:
                    self._act_in(machine.cluster, action)
            case JumpClock() | FullDisk() | Ignore():
                pass  # clock and disk are those of the whole machine, and cards obey
            case _:
                assert_never(action)

    def end(self) -> float:
        """All faults end, and all who use anything; the seconds until all is as planned."""
        machine, node = self._machine, self._node
        machine.end_users()
        node.clear_faults()
        if machine.cluster:
            machine.cluster.recover()
            machine.cluster.delete_pods()
        for card in node.cards:
            self._recover(card.index)
        if not self._is_written:
            self._write(self._plan)
        judge = machine.judge
        judge.touch()
        began = time.monotonic()
        while (missing := judge.missing(self._plan)) and not judge.violations:
            if time.monotonic() - began > MOST:
                judge.violate(invariants.NEVER, f"after {MOST:g} s: {missing}")
            machine.run(_OFTEN)
        seconds = time.monotonic() - began
        if not judge.violations:
            machine.stop()
            judge.look_at_rest(self._plan)
        return seconds

    # --- what is done -----------------------------------------------------------------------------

    def _write(self, plan: Plan | BadPlan) -> None:
        machine = self._machine
        self._is_written = isinstance(plan, Plan)
        if isinstance(plan, Plan):
            self._plan = plan
            machine.judge.wants(plan)
        if machine.cluster:
            machine.cluster.write_plan(plan.text)
        else:
            node_actions.write_plan(machine.home.plan, plan.text)
        machine.judge.touch()

    def _act_in(self, cluster: Cluster, action: ClusterAction) -> None:
        match action:
            case SpoilApi(how, requests):
                cluster.spoil(how, requests)
            case SpoilKubelet(how):
                cluster.spoil_kubelet(how)
            case AddPod(profile):
                cluster.add_pod(profile)
            case DeletePod(number):
                cluster.delete_pod(number)
            case _:
                assert_never(action)

    def _recover(self, gpu: int) -> None:
        if self._node.cards[gpu].state.failure:
            self._machine.end_users(gpu)
            self._node.reset(gpu)
            self._machine.judge.touch()

    def _reboot(self) -> None:
        machine = self._machine
        machine.kill()
        machine.end_users()
        processes.end_all()
        self._node.reboot()
        shutil.rmtree(machine.home.folder / "run", ignore_errors=True)
        machine.judge.touch()
        machine.start()

    def _signal(self, number: signal.Signals, which: int) -> None:
        pid = processes.daemon(self._machine.home.folder, which)
        if pid is not None:
            self._machine.forget_daemons()
            processes.send(pid, number)
            self._machine.judge.touch()
