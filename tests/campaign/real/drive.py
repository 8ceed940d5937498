"""Plays an episode on a machine with real processes, and then ends all faults, as
`tests.campaign.drive` does on the machine's own time.
"""

import shutil
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import assert_never

from nodeagent.simulation.mps.knobs import Knobs
from tests.campaign import episode as day
from tests.campaign import invariants, node_actions, processes, truth
from tests.campaign.outcomes import Outcome
from tests.campaign.real.cluster import Cluster
from tests.campaign.real.days import CDI, RECORDS, SETTLED
from tests.campaign.real.machine import Machine
from tests.folders import new_folder

TIMEOUT = 120.0  # seconds from the end of all faults until the node is what its plan says
_OFTEN = 0.1  # seconds between looks whether it is
_CHANGE = 0.01  # seconds for which each change before a kill counts


def never() -> bool:
    return False


def play(episode: day.Episode) -> Outcome:
    outcome = Outcome(episode)
    folder = new_folder("day-")
    machine = Machine(folder, episode)
    try:
        player = Player(machine)
        machine.start()
        for step in episode.steps:
            outcome.actions[type(step.action).__name__] += 1
            player.act(step.action)
            machine.run(step.seconds, player.is_settled if step.seconds == SETTLED else never)
            if machine.judge.violations:
                break
        else:
            outcome.converged = player.end()
    finally:
        machine.close()
        shutil.rmtree(folder, ignore_errors=True)
    outcome.actions["(claims prepared)"] = len(machine.judge.prepared)
    outcome.actions["(clients served)"] = machine.served
    outcome.actions["(ended in a change)"] = machine.interrupted
    outcome.violations = machine.judge.violations
    return outcome


class Player:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._node = machine.node
        ours = machine.node.cards[:-1] if machine.cluster else machine.node.cards
        self._plan = day.Plan(tuple({} for _ in ours))  # the newest that is one
        self._is_written = False
        self._records_spoiled = False

    def act(self, action: day.Action) -> None:  # noqa: C901, PLR0912  # one case for each kind
        machine, node = self._machine, self._node
        match action:
            case day.Plan() | day.BadPlan():
                self._write(action)
            case day.Occupy(device):
                machine.occupy(device)
            case day.Leave(number):
                machine.leave(number)
            case day.Fault(function, code, times, skip, applied):
                node.inject(function, error=code, times=times, skip=skip, applied=applied)
                machine.judge.touch()
            case day.Hang(function, skip):
                node.inject(function, hang=True, skip=skip)
                machine.judge.touch()
            case day.EndFaults():
                self._end_faults()
            case day.Lose(gpu, code):
                node.lose(gpu, error=code)
                machine.judge.touch()
            case day.Recover(gpu):
                self._recover(gpu)
            case day.Xid(gpu, number):
                node.xid(gpu, number)
                machine.judge.unhealthy = True
            case day.Foreign(gpu, create, number):
                node_actions.change_behind_its_back(node, gpu, number, create=create)
                machine.judge.touch()
            case day.Kill(changes, down):
                machine.run(changes * _CHANGE)
                machine.kill()
                machine.run(down)
                machine.start()
            case day.Pause(seconds):
                machine.pause(seconds)
            case day.Restart():
                machine.stop()
                machine.start()
            case day.Reboot():
                self._reboot()
            case day.Damage(directory, how, number):
                self._damage(directory, how, number)
            case day.JumpClock(seconds):
                machine.clock.set_by(seconds)
                machine.judge.touch()
            case day.FullDisk(writes, directory, read_only):
                self._spoil_disk(writes, directory, read_only=read_only)
            case day.Misbehave(knob, number):
                machine.forget_daemons()
                machine.daemons_spoiled = True
                node_actions.misbehave(machine.own / "bin", machine.home.folder, knob, number)
                machine.judge.touch()
            case day.Signal(name, number):
                self._signal(signal.Signals[name], number)
            case day.SpoilApi() | day.SpoilKubelet() | day.AddPod() | day.DeletePod():
                if machine.cluster:
                    self._act_in(machine.cluster, action)
            case day.Ignore():
                pass  # cards obey
            case _:
                assert_never(action)

    def is_settled(self) -> bool:
        return not self._machine.judge.missing(self._plan)

    def end(self) -> float:
        """All faults end, and all who use anything; the seconds until all is as planned."""
        machine, node, judge = self._machine, self._node, self._machine.judge
        machine.end_users()
        self._end_faults()
        if cluster := machine.cluster:
            if judge.claims_spoiled:
                self._mend_claims(cluster)
            planned = node.cards[0].identity.uuid
            self._wait(lambda: cluster.waiting(planned), invariants.CLAIM)
            self._wait(judge.unserved, invariants.NOT_SO)
            cluster.delete_pods()
        for card in node.cards:
            self._recover(card.index)
        if not self._is_written:
            self._write(self._plan)
        judge.touch()
        seconds = self._wait(lambda: judge.missing(self._plan), invariants.NEVER)
        seconds += self._wait(lambda: truth.wrong_limits(machine.home.folder), invariants.NOT_SO)
        if not judge.violations:
            machine.stop()
            judge.look_at_rest(self._plan)
        return seconds

    def _wait(self, missing: Callable[[], str | list[str]], kind: str) -> float:
        """The seconds until nothing is missing; that it takes too long is a violation."""
        machine, judge = self._machine, self._machine.judge
        began = time.monotonic()
        while (what := missing()) and not judge.violations:
            if time.monotonic() - began > TIMEOUT:
                judge.violate(kind, f"after {TIMEOUT:g} s: {what}")
            machine.run(_OFTEN)
        return time.monotonic() - began

    def _mend_claims(self, cluster: Cluster) -> None:
        """The next agent writes the CDI files anew that are not as they were. Where records were
        changed, a person does what the agent advises: what they were of is taken down.
        """
        machine, judge = self._machine, self._machine.judge
        machine.kill()
        if self._records_spoiled:
            cluster.delete_pods()
            for file in (*(machine.own / "claims").glob("*"), *self._cdi_files()):
                file.unlink()
            processes.end_all()  # MPS daemons of claims
            shutil.rmtree(machine.home.folder / "run/mps", ignore_errors=True)
            card = self._node.cards[-1]
            with self._node.changes():  # the agent made some in its last moments
                card.state.compute_mode = 0
                instances = len(card.state.instances)
            for number in range(instances):
                node_actions.change_behind_its_back(self._node, card.index, number, create=False)
        machine.start()
        self._wait(judge.wrong_claims, invariants.CLAIM)
        judge.claims_spoiled = False

    def _cdi_files(self) -> Iterable[Path]:
        return (self._machine.home.folder / "cdi").glob("nodeagent.io-claim*")

    # --- what is done -----------------------------------------------------------------------------

    def _end_faults(self) -> None:
        machine = self._machine
        machine.clear_faults()
        machine.disks.recover()
        machine.daemons_spoiled = False
        if (machine.own / "bin" / "knobs").exists():
            Knobs(machine.own / "bin").clear()
        if machine.cluster:
            machine.cluster.recover()
        machine.judge.touch()

    def _damage(self, directory: str, how: str, number: int) -> None:
        machine = self._machine
        machine.judge.claims_spoiled |= directory in {CDI, RECORDS}
        if directory == "run":  # a daemon that no client can find any more is replaced
            machine.forget_daemons()
            machine.daemons_spoiled = True
        self._records_spoiled |= directory == RECORDS
        with suppress(OSError):  # the agent writes there at the same time
            node_actions.damage(machine.home.folder / directory, how, number)

    def _spoil_disk(self, writes: int, directory: str, *, read_only: bool) -> None:
        machine = self._machine
        machine.forget_daemons()  # they write, too
        if read_only:
            machine.disks.make_read_only("state")
        else:
            machine.disks.fill(directory, writes)
        machine.judge.touch()

    def _write(self, plan: day.Plan | day.BadPlan) -> None:
        machine = self._machine
        self._is_written = isinstance(plan, day.Plan)
        if isinstance(plan, day.Plan):
            self._plan = plan
            machine.judge.wants(plan)
        if machine.cluster:
            machine.cluster.write_plan(plan.text)
        else:
            node_actions.write_plan(machine.home.plan, plan.text)
        machine.judge.touch()

    def _act_in(self, cluster: Cluster, action: day.ClusterAction) -> None:
        match action:
            case day.SpoilApi(how, requests):
                cluster.spoil(how, requests)
            case day.SpoilKubelet(how):
                cluster.spoil_kubelet(how)
            case day.AddPod(profile):
                cluster.add_pod(profile)
            case day.DeletePod(number):
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
        for volatile in ("run", CDI):
            shutil.rmtree(machine.home.folder / volatile, ignore_errors=True)
        if machine.cluster:
            machine.cluster.reboot()
        machine.judge.prepared.clear()  # claims get other instances now
        machine.judge.touch()
        machine.start()

    def _signal(self, number: signal.Signals, which: int) -> None:
        pid = processes.daemon(self._machine.home.folder, which)
        if pid is not None:
            self._machine.forget_daemons()
            processes.send(pid, number)
            self._machine.judge.touch()
