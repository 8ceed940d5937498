"""Plays an episode: its actions, then an end of all faults; the node has to become as planned."""

import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import assert_never

from nodeagent.errors import UsageError
from nodeagent.simulation.mps.knobs import Knobs
from tests.campaign import episode as day
from tests.campaign import invariants, node_actions, pages, processes, truth
from tests.campaign.clock import CLOCK
from tests.campaign.invariants import Violation
from tests.campaign.library import Arrival, Hold
from tests.campaign.machine import Machine
from tests.campaign.outcomes import Outcome

TIMEOUT = 900.0  # seconds from the end of all faults until the node is what its plan says
_OFTEN = 5.0  # seconds between looks whether it is
_RESTED = 45.0  # seconds in which everything is observed and sampled anew
_RARELY = 120.0  # and what is read seldom, such as the driver as a whole
_SOON = 40.0  # seconds after which a plan is carried out where nothing is wrong


def play(episode: day.Episode) -> Outcome:
    CLOCK.begin(episode.seed)
    outcome = Outcome(episode)
    folder = Path(tempfile.mkdtemp(prefix="day-", dir="/dev/shm"))
    machine = Machine(folder, episode.boards, strict=episode.strict, has_mps=episode.has_mps)
    try:
        player = Player(machine)
        machine.start()
        for step in episode.steps:
            outcome.actions[type(step.action).__name__] += 1
            player.act(step.action)
            machine.run(step.seconds)
            player.after(step)
            if machine.witness.violations:
                break
        else:
            outcome.converged = player.end()
    finally:
        machine.close()
        shutil.rmtree(folder, ignore_errors=True)
    outcome.violations = machine.witness.violations
    return outcome


class Player:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._node = machine.node
        self._witness = machine.witness
        self._file: day.Plan | None = None  # in the plan file, where that is one
        self._lost: set[int] = set()  # GPUs that were ever lost
        self._is_well = True  # nothing is wrong with what all GPUs need

    def act(self, action: day.Action) -> None:  # noqa: C901, PLR0912  # one case for each kind
        machine, node, border = self._machine, self._node, self._machine.border
        match action:
            case day.Plan() | day.BadPlan():
                self._write(action)
            case day.Occupy(device, before, skip):
                if before:
                    arrival = Arrival(before, skip, lambda: self._occupy(device))
                    border.arrivals.append(arrival)
                else:
                    self._occupy(device)
            case day.Leave(number):
                pids = [p.pid for card in node.cards for p in card.state.processes]
                if pids:
                    node.release(pid=pids[number % len(pids)])
            case day.Fault(function, code, times, skip, applied):
                node.inject(function, error=code, times=times, skip=skip, applied=applied)
                self._witness.touch()
            case day.Hang(function, skip):
                border.holds.append(Hold(function, skip))
            case day.Ignore(function):
                border.ignored.append(function)
                self._witness.touch()
            case day.EndFaults():
                self._end_faults()
            case day.Lose(gpu, code):
                self._lost.add(gpu)
                self._witness.others_came = True  # to reset it
                node.lose(gpu, error=code)
                self._witness.touch()
            case day.Recover(gpu):
                self._recover(gpu)
            case day.Xid(gpu, number):
                node.xid(gpu, number)
                self._witness.unhealthy = True
            case day.Foreign(gpu, create, number):
                node_actions.change_behind_its_back(node, gpu, number, create=create)
                self._witness.others_came = True
                self._witness.touch()
            case day.Kill(changes, _, before):
                self._kill(changes or None, before)
            case day.Pause(seconds):
                CLOCK.pass_to(CLOCK.now + seconds)
                self._witness.changed += seconds  # in which nothing could be noticed, nor mended
                self._witness.spoiled += seconds
            case day.Restart():
                machine.stop()
                machine.start()
            case day.Reboot():
                self._reboot()
            case day.JumpClock(seconds):
                CLOCK.jump += seconds
            case day.Damage(directory, how, number):
                self._damage(machine.folder / directory, how, number)
            case day.FullDisk(writes, directory, read_only):
                border.full_at, border.full_in, border.read_only = writes, directory, read_only
                self._witness.state_kept = False
                self._witness.touch()
            case day.Signal(name, number):
                self._signal(signal.Signals[name], number)
            case day.Misbehave(knob, number):
                node_actions.misbehave(processes.programs(), machine.folder, knob, number)
                self._witness.spoil()
            case day.SpoilApi() | day.SpoilKubelet() | day.AddPod() | day.DeletePod():
                pass  # there is no cluster, and no other agent
            case _:
                assert_never(action)

    def after(self, step: day.Step) -> None:
        """What belongs to the end of its step: an agent that was killed is started again."""
        machine, action = self._machine, step.action
        if isinstance(
            action, day.Fault | day.Hang | day.Ignore | day.FullDisk | day.Xid | day.Misbehave
        ):
            self._is_well = False
        if isinstance(action, day.Kill):
            machine.kill()
            machine.border.arrivals.clear()
        if not machine.runs and not self._witness.violations:
            machine.run(action.down if isinstance(action, day.Kill) else 1.0)
            machine.start()
        if isinstance(action, day.Plan) and step.seconds >= _SOON and self._is_well:
            self._judge_others(action)

    def end(self) -> float:
        """All faults end, and all who use anything; the seconds until all is as planned."""
        machine, node, witness = self._machine, self._node, self._witness
        machine.border.kill_at = None
        machine.border.arrivals.clear()
        node.release()
        self._end_faults()
        for card in node.cards:
            if card.state.failure:
                node.reset(card.index)
        if witness.wanted is None or (self._file is None and not witness.state_kept):
            self._write(self._file or day.Plan(tuple({} for _ in node.cards)))
        witness.touch()
        seconds = self._converge()
        self._look_at_pages()
        if machine.has_mps and witness.wanted and not witness.violations:
            self._wait_for_limits()
            self._write(day.Plan(witness.wanted.layouts))  # nothing is shared any more
            self._converge()
        self._compare_with_next()
        return seconds

    def _look_at_pages(self) -> None:
        """Once all is at rest they show what there is, and nothing that was wrong before."""
        machine, witness = self._machine, self._witness
        wrong = list[str]()
        for seconds in (_RESTED, _RARELY):
            machine.run(seconds)
            if witness.violations:
                return
            status, metrics = machine.do(pages.read(machine.folder / "run" / "agent.sock"))
            machine.run(1.0)  # the connections end
            wrong = [*pages.untrue(self._node, machine.folder, status, metrics)]
            if not witness.unhealthy:
                wrong += pages.not_ended(status, others_came=witness.others_came)
            if not wrong:
                return
        witness.violations += [Violation(invariants.NOT_SHOWN, one) for one in wrong]

    def _compare_with_next(self) -> None:
        """An agent that came through all this has no more of anything than the next one."""
        machine, witness = self._machine, self._witness
        if witness.violations:
            return
        had = machine.held()
        machine.stop()
        machine.start()
        machine.run(_OFTEN)
        witness.touch()
        self._converge()
        if more := had - machine.held():
            witness.violate(invariants.LEAK, f"while it ran: {', '.join(more.elements())}")
        if not witness.violations:
            machine.stop()

    def _wait_for_limits(self) -> None:
        """Daemons that were frozen, or lost their limits, have been noticed by then."""
        until = CLOCK.now + TIMEOUT
        while wrong := truth.wrong_limits(self._machine.folder):
            if CLOCK.now > until or self._witness.violations:
                self._witness.violate(invariants.NOT_SO, "; ".join(wrong))
                return
            self._machine.run(_SOON)

    def _converge(self) -> float:
        machine, witness = self._machine, self._witness
        began = CLOCK.now
        while not self._converged() and CLOCK.now - began < TIMEOUT and not witness.violations:
            machine.run(_OFTEN)
        if witness.violations:
            return TIMEOUT
        if not self._converged():
            wrong = "; ".join(witness.differences())
            witness.violate(invariants.NEVER, f"{witness.phase} after {TIMEOUT:g} s: {wrong}")
            return TIMEOUT
        return CLOCK.now - began if witness.in_sync_at is None else witness.in_sync_at - began

    def _converged(self) -> bool:
        """All is as planned, and said to be so where the newest plan is the one in force."""
        witness = self._witness
        return witness.in_sync_at is not None or (self._file is None and not witness.differences())

    def _judge_others(self, plan: day.Plan) -> None:
        """GPUs that are well and free are as planned soon, whatever is wrong with others."""
        for index, gpu in enumerate(truth.gpus(self._node)):
            if index in self._lost or self._node.cards[index].state.processes:
                continue
            if not gpu.is_as(plan.layouts[index]):
                self._witness.violate(
                    invariants.HELD_UP, f"GPU {index} is {gpu} and not {plan.layouts[index]}"
                )

    # --- what is done -----------------------------------------------------------------------------

    def _write(self, plan: day.Plan | day.BadPlan) -> None:
        machine, witness = self._machine, self._witness
        unread = witness.in_sync_at is None or not witness.state_kept
        lost = any(card.state.failure for card in machine.node.cards)
        if isinstance(plan, day.BadPlan) and (unread or lost):
            # The plan before may not have been read, or not be kept; and what a lost GPU cannot
            # be is found out when it is back.
            witness.wanted = None
        self._file = plan if isinstance(plan, day.Plan) else None
        if isinstance(plan, day.Plan):
            witness.wanted = plan
        node_actions.write_plan(machine.plan, plan.text)
        witness.touch()

    def _occupy(self, number: int) -> None:
        places = node_actions.devices(self._node)
        if places:
            device = places[number % len(places)]
            with suppress(UsageError):  # its compute mode keeps it out
                process = self._node.occupy(device, memory=None)
                self._machine.border.came(process, int(device.partition("/")[0]))

    def _end_faults(self) -> None:
        self._node.clear_faults()
        if self._machine.has_mps:
            Knobs(processes.programs()).clear()
        self._machine.border.end_faults()
        self._is_well = not self._witness.unhealthy
        self._witness.touch()

    def _recover(self, gpu: int) -> None:
        if self._node.cards[gpu].state.failure:
            self._node.release(gpu)
            self._node.reset(gpu)
            self._witness.touch()

    def _kill(self, changes: int | None, before: str) -> None:
        border = self._machine.border

        def count() -> None:
            border.kill_at = changes

        if before:
            border.arrivals.append(Arrival(before, 0, count))
        else:
            count()

    def _reboot(self) -> None:
        machine = self._machine
        machine.kill()
        processes.end_all()
        self._node.reboot()
        shutil.rmtree(machine.folder / "run", ignore_errors=True)
        (machine.folder / "run").mkdir()
        self._witness.touch()

    def _signal(self, number: signal.Signals, which: int) -> None:
        pid = processes.daemon(self._machine.folder, which)
        if pid is not None:
            processes.send(pid, number)
            self._witness.spoil()

    def _damage(self, folder: Path, how: str, number: int) -> None:
        if folder.name == "state":
            self._witness.state_kept = False
        self._witness.spoil()
        node_actions.damage(folder, how, number)
