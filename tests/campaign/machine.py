"""A machine that can be treated badly: simulated cards, a disk, and the agent as a process on it.

The agent is what `nodeagent run` builds, in an event loop of its own for each of its lives. Its
calls of the driver and the disk pass a border, where its process can be killed at any moment.
"""

from __future__ import annotations

import asyncio
import gc
import io
import re
import time
from collections import Counter
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

from nodeagent.app.logs import configure_logging
from nodeagent.app.paths import Paths, Simulation
from nodeagent.app.sd_notify import Notifier
from nodeagent.app.service import Agent
from nodeagent.errors import NodeagentError
from nodeagent.mps.programs import Programs
from nodeagent.mps.setup import MpsPlaces
from nodeagent.reconcile.writer_lock import FILE_NAME, OtherWriter, WriterLock
from nodeagent.settings import Settings, load_settings
from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.nvml_library import installed
from tests.campaign import invariants, processes, truth
from tests.campaign.clock import CLOCK, living_threads
from tests.campaign.disk import watched
from tests.campaign.invariants import Violation
from tests.campaign.library import Border, BorderLibrary
from tests.campaign.loop import MachineLoop, Spinning
from tests.campaign.witness import Witness

T = TypeVar("T")

ENDING = 200.0  # seconds that an agent may take to end: all deadlines of a step, one after another
_THREADS = 4  # beside one for each GPU: they end with the process
_IN_DRIVER = 2.5  # seconds for which a thread may wait there for events
_LOOK = (
    1.5  # real seconds: a look at a busy program of this machine, in a real thread, is over then
)
_AFTER_DEATH = 30.0  # seconds in which what is left of a killed process unwinds
_DEADLINES = {"driver.observe_deadline": "2s", "driver.step_deadline": "6s"}
_INTERVALS = {"resync.interval": "30s", "sample.interval": "20s", "sample.slow_interval": "2m"}


class _Log(io.StringIO):
    """The log of the agent that runs now; loggers keep the stream that they had first."""

    lines: list[str]

    def write(self, text: str) -> int:
        self.lines += text.splitlines()
        return len(text)


LOG = _Log()
LOG.lines = []


class _StatusLine(Notifier):
    """In the place of systemd: gets every state at the moment when it is published."""

    def __init__(self, machine: Machine) -> None:
        object.__setattr__(self, "address", "")
        object.__setattr__(self, "watchdog", None)
        object.__setattr__(self, "_machine", machine)

    def status(self, line: str) -> None:
        self._machine.witness.published(line.partition(":")[0])  # type: ignore[attr-defined]  # see above


class Machine:
    """One node, and the agent's lives on it. `settings` are other ones than a campaign's."""

    arriving = 0.0  # see MachineLoop

    def __init__(
        self,
        folder: Path,
        boards: str,
        *,
        strict: bool,
        has_mps: bool,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.folder = folder
        self.has_mps = has_mps
        self.node = SimulatedNode(boards)
        self.border = Border(self.node, strict)
        self.witness = Witness(self.node, self.border, folder)
        self.plan = folder / "plan.yaml"
        for name in ("run", "state"):
            (folder / name).mkdir(parents=True)
        folder.chmod(0o755)  # daemons run as another user
        self._settings = self._load_settings(settings or {})
        self._life: _Life | None = None

    async def begin(self) -> None:
        """What is there before the agent, in the same event loop."""

    def _load_settings(self, others: Mapping[str, object]) -> Settings:
        here = self.folder
        places = {
            "plan.source": "file",
            "plan.file": self.plan,
            "run.dir": here / "run",
            "state.dir": here / "state",
            "cdi.dir": here / "cdi",
            "api.listen": "127.0.0.1:0",
            "kubernetes.use": "never",
            "kubelet.use": "never",
            "mps.launch": "child",
            "node_name": "gpu-node-0",
        }
        return load_settings(None, {}, {**places, **_DEADLINES, **_INTERVALS, **others})

    def close(self) -> None:
        if self._life:
            self.kill()
        self.node.close()
        processes.end_all()

    def held(self) -> Counter[str]:
        """What the agent that runs has: its tasks, threads and descriptors."""
        return self._life.held() if self._life else Counter()

    # --- the agent's lives ------------------------------------------------------------------------

    @property
    def runs(self) -> bool:
        return self._life is not None

    def start(self) -> None:
        """As after a boot or by systemd, which starts it again whenever it ended."""
        if self._life is None:
            self.border.dead, self.border.kill_at, self.border.was_full = False, None, False
            self.witness.begin_life()
            self._life = _Life(self, self._settings)

    def run(self, seconds: float) -> None:
        """Let the machine be for so long; without an agent time just passes."""
        until = CLOCK.now + seconds
        if self._life:
            self._life.run_for(seconds)
            if self.border.dead:
                self._bury()
            elif self._life.ended:
                self._ended()
        CLOCK.pass_to(until)
        self._judge()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Have it done in the agent's event loop."""
        assert self._life is not None
        return self._life.do(work)

    def kill(self) -> None:
        if self._life:
            self.border.dead = True
            self._bury()

    def stop(self) -> None:
        life = self._life
        if life is None:
            return
        before = CLOCK.now
        life.run_for(0.0)  # it may not have begun
        if life.ended and not self.border.dead:
            self._ended()
            return
        if not self.border.dead:
            life.stop()
            life.run_for(ENDING)
        if self.border.dead:
            self._bury()
            return
        if not life.ended:
            self.witness.violate(
                invariants.NO_END, f"within {CLOCK.now - before:.0f} s after SIGTERM"
            )
            self.kill()
            return
        self._life = None
        stuck = bool(self.border.holds)
        left = life.close()
        if not stuck:
            self.witness.violations += [Violation(invariants.LEAK, one) for one in left]
        self._judge()

    def _ended(self) -> None:
        """It ended by itself, as it may without its lock or its socket; it is started again."""
        life, self._life = self._life, None
        assert life is not None
        full = self.border.was_full and isinstance(life.error, NodeagentError)
        # A program that a killed agent was about to start has its lock until the exec.
        locked = self.has_mps and isinstance(life.error, OtherWriter)
        if not (full or locked):
            words = f"{type(life.error).__name__}: {life.error}" if life.error else "no error"
            self.witness.violate(invariants.CRASH, words)
        life.close()

    def _bury(self) -> None:
        life, self._life = self._life, None
        assert life is not None
        log = LOG.lines
        LOG.lines = []  # a process that is no more writes nothing
        life.die()
        LOG.lines = log

    def _judge(self) -> None:
        if self._life:
            self.witness.look()
        self.witness.violations += invariants.of_attempts(self.border.attempts)
        self.witness.violations += invariants.of_log(LOG.lines)
        self.border.attempts.clear()
        LOG.lines.clear()


class _Life:
    def __init__(self, machine: Machine, settings: Settings) -> None:
        self._machine = machine
        self._settings = settings
        self._border = machine.border
        self._before = truth.descriptors()
        self._library = BorderLibrary(machine.border)
        self._installed = ExitStack()
        self._installed.enter_context(installed(self._library))
        self._unwinding = False
        self._loop = MachineLoop(
            lambda: self._border.dead and not self._unwinding,
            has_processes=machine.has_mps,
            arriving=machine.arriving,
        )
        run, state = machine.folder / "run", machine.folder / "state"
        self._lock = WriterLock(run / FILE_NAME, state)
        self.agent: Agent
        self.error: BaseException | None = None
        configure_logging(form="json", level="info", stream=LOG)
        self._main = self._loop.create_task(self._run(), name="agent")
        self._main.add_done_callback(lambda _: self._loop.stop())

    async def _run(self) -> None:
        """As `nodeagent.app.process.run`, but for the signals."""
        machine, folder = self._machine, self._machine.folder
        await machine.begin()
        mps = MpsPlaces(
            run_dir=folder / "run",
            cdi_dir=folder / "cdi",
            memory=folder / "state" / "earlier-modes.json",
            programs=Programs(path=f"{processes.programs()}:/usr/bin:/bin"),
            simulated=True,
        )
        simulation = Simulation(
            None,
            ("false",),
            folder / "state",
            mps,
            frozenset,
            machine.node.capabilities,
            machine.node.pcie_root,
        )
        places = Paths(self._settings, simulation)
        places.make_state_directory()
        self._lock.take()
        self.agent = Agent(
            self._settings, None, places, _StatusLine(machine), self._lock, on_ready=lambda: None
        )
        await self.agent.run()

    @property
    def ended(self) -> bool:
        return self._main.done()

    def run_for(self, seconds: float) -> None:
        """Let it work; returns earlier when it ended or was killed."""
        with watched(self._machine.folder, self._border):
            try:
                self._loop.run_for(seconds)
            except Spinning:
                self._machine.witness.violate(invariants.SPINS, "")
                self._border.dead = True
        if self.ended and not self._border.dead:
            self.error = self._main.exception()
            while isinstance(self.error, BaseExceptionGroup):
                self.error = self.error.exceptions[0]

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def stop(self) -> None:
        self._loop.call_soon(self.agent.stop, "SIGTERM")

    def close(self) -> list[str]:
        """Clean up after an agent that ended by itself; what it left."""
        for _ in range(3):  # what was cancelled in the last moment may end
            self._loop.run_for(0.0)
        left = [f"task {task.get_name()}" for task in asyncio.all_tasks(self._loop)]
        CLOCK.now += _IN_DRIVER
        while CLOCK.let_one_run():
            pass
        threads = living_threads()
        if len(threads) > _THREADS + len(self._machine.node.cards):
            left += [f"thread {name}" for name in threads]
        self._end()
        if self._open():
            gc.collect()  # what is in a cycle closes itself
            time.sleep(_LOOK)
        return [*left, *(f"descriptor {what}" for what in self._open())]

    def held(self) -> Counter[str]:
        tasks = (f"task {task.get_name()}" for task in asyncio.all_tasks(self._loop))
        threads = (f"thread {name}" for name in living_threads())
        if any(what.startswith("/proc/") for what in self._open()):
            time.sleep(_LOOK)  # a thread looks at a process just now
        opened = (f"descriptor {re.sub(r'[0-9]+', 'N', what)}" for what in self._open())
        return Counter([*tasks, *threads, *opened])

    def _open(self) -> list[str]:
        now = truth.descriptors()
        return [what for number, what in now.items() if self._before.get(number) != what]

    def die(self) -> None:
        """What a killed process held is free; nothing that it would do now has an effect."""
        loop, self._unwinding = self._loop, True
        for turn in CLOCK.turns:
            turn.killed = True
        loop.set_exception_handler(lambda *_: None)
        with watched(self._machine.folder, self._border), suppress(Spinning):
            for _ in range(5):
                for task in asyncio.all_tasks(loop):
                    task.cancel()
                until = CLOCK.now + _AFTER_DEATH
                while asyncio.all_tasks(loop) and CLOCK.now < until:
                    loop.call_later(0.1, loop.stop)
                    loop.run_forever()
        self._end()

    def _end(self) -> None:
        loop, self._unwinding = self._loop, True
        for turn in CLOCK.turns:
            turn.closed = turn.killed = True
        while CLOCK.let_one_run():
            pass
        if self._main.done() and not self._main.cancelled():
            self._main.exception()  # retrieved
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        self._lock.release()
        self._library.forget()
        self._installed.close()
        gc.unfreeze()
