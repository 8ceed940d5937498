"""Runs a command of the administrator's when the devices have changed, such as for CDI or Slurm."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Hashable
from typing import TYPE_CHECKING

import structlog

from nodeagent.pacing import Backoff
from nodeagent.plan.observed import Access
from nodeagent.plan.problems import Code, Problem
from nodeagent.programs import PATH, run_program
from nodeagent.signals import Signal
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.waiting import ends_within

if TYPE_CHECKING:
    from nodeagent.settings.model import AfterChangeSettings

log = structlog.get_logger(__name__)

_ENVIRONMENT = {"LC_ALL": "C", "PATH": PATH}
_MAX_WORDS = 500  # characters of what it said that are shown


class AfterChange:
    """The command runs when the devices are others than at its last run, and at the agent's start,
    since they may have changed before. What fails is tried again. Nothing waits for it.
    """

    def __init__(self, settings: AfterChangeSettings, states: Signal[NodeState]) -> None:
        self._settings = settings
        self._states = states
        self._devices: Hashable = None  # as known last; None: the command may have seen others
        self._is_running = False
        self._due = asyncio.Event()
        self.problems: Signal[tuple[Problem, ...]] = Signal(())

    async def run(self) -> None:
        """Run the command whenever it is time to, until cancelled."""
        command = self._settings.command
        if not command:
            return
        self._states.subscribe(self._note)
        self._note(self._states.newest)
        backoff = Backoff(10.0, 600.0)
        failed: tuple[Problem, ...] = ()
        while True:
            if await ends_within(backoff.next() if failed else None, self._due.wait()):
                backoff.reset()
            self._due.clear()
            self._is_running = True
            failed = await self._attempt(command)
            self._is_running = False
            self.problems.publish(failed)

    def _note(self, state: NodeState) -> None:
        found = _devices(state)
        if found is None:  # what the command reads meanwhile may be half of a change
            self._devices = None if self._is_running else self._devices
        elif found != self._devices:
            self._devices = found
            self._due.set()

    async def _attempt(self, command: tuple[str, ...]) -> tuple[Problem, ...]:
        deadline = self._settings.deadline
        try:
            status, said, _ = await run_program(command, _ENVIRONMENT, deadline=deadline)
            why = f"ended with {status}: {' '.join(said.split())[-_MAX_WORDS:] or 'no output'}"
        except TimeoutError:
            status, why = 1, f"did not end within {deadline:g} s and was ended"
        except OSError as error:
            status, why = 1, f"cannot be run: {error.strerror}"
        words = shlex.join(command)
        if not status:
            log.info("the command after a change is done", command=words)
            return ()
        problem = Problem.of(Code.AFTER_CHANGE, command=words, why=why)
        log.warning(problem.message, remedy=problem.remedy)
        return (problem,)


def _devices(state: NodeState) -> Hashable:
    """GPUs with their MIG mode and MIG devices; None while they are being changed or not known."""
    gpus = state.observed.gpus
    unknown = any(gpu.access is Access.UNKNOWN for gpu in gpus)
    if not gpus or unknown or state.phase is Phase.WORKING:
        return None
    return tuple(
        (
            gpu.uuid,
            gpu.mig and gpu.mig.current,
            tuple(device.uuid for instance in gpu.instances for device in instance.compute),
        )
        for gpu in gpus
    )
