"""Requests of people and plans for one daemon: start, stop, drain, restart."""

from __future__ import annotations

import asyncio

from nodeagent.errors import NodeagentError, StillInUse
from nodeagent.mps.files.directories import remove_directories
from nodeagent.mps.lifecycle.model import (
    DrainGivenUp,
    DrainRequested,
    Ending,
    Phase,
    RetryRequested,
)
from nodeagent.mps.supervisor import Supervisor
from nodeagent.mps.supervisor_context import SupervisorContext, Timing
from nodeagent.processes import name_of

_NO_PROCESS = frozenset({Phase.DOWN, Phase.BACKOFF, Phase.FAILED})
_KILLS = 3  # repeated kills, after which its end is not waited for any longer
_SLACK = 1.0  # seconds


class NotReady(NodeagentError):
    """A daemon is not Ready; the message says why, with the last lines of its log."""


async def started(supervisor: Supervisor, timing: Timing) -> None:
    """Until it is Ready; raises NotReady."""
    state = supervisor.state
    if state.phase not in {Phase.BACKOFF, Phase.FAILED}:
        try:
            async with asyncio.timeout(timing.start):
                await supervisor.condition.wait_for(
                    lambda: _is_ready(supervisor) or _has_failed(supervisor)
                )
        except TimeoutError:
            pass
    if _is_ready(supervisor):
        return
    state = supervisor.state
    said = f"; its log ends: {' / '.join(supervisor.last_lines)}" if supervisor.last_lines else ""
    raise NotReady(
        f"the MPS daemon of {supervisor.device} is {state.phase}: {state.why or 'not Ready'}{said}",
        remedy="see its log; as long as an agent runs, it goes on trying"
        if state.phase is not Phase.FAILED
        else f"mend the cause; to try at once: nodeagent mps restart {supervisor.device}",
    )


def _is_ready(supervisor: Supervisor) -> bool:
    state = supervisor.state
    return state.phase is Phase.READY and state.running == state.wanted


def _has_failed(supervisor: Supervisor) -> bool:
    return supervisor.state.phase in {Phase.BACKOFF, Phase.FAILED}


async def stopped(supervisor: Supervisor, context: SupervisorContext) -> None:
    """Until it is gone with all it had; raises StillInUse, with all as it was."""
    wanted = supervisor.wanted
    supervisor.want(None)
    try:
        await _proven_unused(supervisor, context.timing)
    except BaseException:
        supervisor.want(wanted)
        raise
    await _gone(supervisor, context)
    await _cleared(supervisor, context)


async def end(supervisor: Supervisor, context: SupervisorContext) -> None:
    """End it whatever its clients; for a device that is gone."""
    supervisor.want(None)
    supervisor.handle(DrainRequested(0.0, force=True))
    await _gone(supervisor, context)
    await _cleared(supervisor, context)


async def drained(supervisor: Supervisor, *, seconds: float | None, force: bool) -> tuple[int, ...]:
    """Until it is Down, or the time is over; the pids of the clients left. Raises StillInUse where
    it is not Down and those are not known.
    """
    supervisor.handle(DrainRequested(seconds, force=force))
    if supervisor.monitor is not None:
        supervisor.monitor.look_soon()  # without clients it need not wait for the next look
    patience = None if seconds is None or force else seconds + _SLACK
    try:
        async with asyncio.timeout(patience):
            await supervisor.condition.wait_for(
                lambda: supervisor.state.phase is not Phase.DRAINING
            )
    except TimeoutError:
        pass  # a plan wants it drained as well, and goes on waiting
    except asyncio.CancelledError:
        supervisor.handle(DrainGivenUp())
        raise
    if supervisor.state.phase in _NO_PROCESS:
        await supervisor.condition.wait_for(lambda: supervisor.is_idle)
        return ()
    left = _pids(supervisor)
    if not left:  # must not pass for drained
        raise _not_known(supervisor)
    return left


async def restarted(supervisor: Supervisor, timing: Timing, *, force: bool) -> None:
    """Until there is another process, and it is Ready."""
    run = supervisor.state.run
    if supervisor.state.phase in _NO_PROCESS:
        supervisor.handle(RetryRequested())
    elif force:
        supervisor.handle(DrainRequested(0.0, force=True, then_start=True))
        await supervisor.condition.wait_for(
            lambda: supervisor.state.run != run or _has_failed(supervisor)
        )
    else:
        supervisor.handle(DrainRequested(None, then_start=True))
        try:
            await _proven_unused(supervisor, timing)
        except BaseException:
            supervisor.handle(DrainGivenUp())
            raise
        await supervisor.condition.wait_for(
            lambda: supervisor.state.run != run or _has_failed(supervisor)
        )
    await started(supervisor, timing)


# --- in use or not ----------------------------------------------------------------------------


async def _proven_unused(supervisor: Supervisor, timing: Timing) -> None:
    """Until its end has begun, because it has no client; raises StillInUse."""
    run, monitor = supervisor.state.run, supervisor.monitor
    looks = monitor.looks if monitor else 0
    if monitor:
        monitor.look_soon()

    def begun() -> bool:
        state = supervisor.state
        return (
            supervisor.state.ending is not Ending.NO
            or state.run != run
            or state.phase in _NO_PROCESS
        )

    def used() -> bool:
        now = supervisor.monitor
        if now is None or now.seen is None or not now.seen_hidden or not now.seen.clients:
            return False
        return now is not monitor or now.looks > looks

    try:
        async with asyncio.timeout(2 * timing.answer):
            await supervisor.condition.wait_for(lambda: begun() or used())
    except TimeoutError:
        if begun():
            return
        raise _not_known(supervisor) from None
    if not begun():
        raise StillInUse(
            f"the MPS daemon of {supervisor.device} has clients: {_named(supervisor)}",
            remedy="end them, or wait for them",
        )


def _not_known(supervisor: Supervisor) -> StillInUse:
    return StillInUse(
        f"whether the MPS daemon of {supervisor.device} has clients is not known: it does not "
        "answer, and has a server",
        remedy="try again later, or restart it by force: "
        f"nodeagent mps restart {supervisor.device} --force",
    )


async def _gone(supervisor: Supervisor, context: SupervisorContext) -> None:
    settings = context.settings
    patience = settings.quit_deadline + _KILLS * settings.kill_deadline + context.timing.answer

    def is_gone() -> bool:
        return supervisor.state.phase in _NO_PROCESS and supervisor.is_idle

    try:
        async with asyncio.timeout(patience):
            await supervisor.condition.wait_for(is_gone)
    except TimeoutError:
        raise NodeagentError(
            f"the MPS daemon of {supervisor.device} (pid {supervisor.state.pid}) does not end: "
            f"{supervisor.state.why}",
            remedy="see the kernel's log, else reboot the node",
        ) from None


async def _cleared(supervisor: Supervisor, context: SupervisorContext) -> None:
    """Nothing is left of it; raises NodeagentError for what could not be taken away."""
    spec = supervisor.spec_of(supervisor.wanted) if supervisor.wanted else None
    if spec is not None:
        await supervisor.starter.sweep(spec)
    if supervisor.starter.left_over:
        raise NodeagentError(supervisor.starter.left_over)
    await asyncio.to_thread(remove_directories, context.run_dir, supervisor.device)


def _pids(supervisor: Supervisor) -> tuple[int, ...]:
    return tuple(pid for _, pid in supervisor.seen.clients) if supervisor.seen else ()


def _named(supervisor: Supervisor) -> str:
    return ", ".join(map(_with_command, _pids(supervisor)))


def _with_command(pid: int) -> str:
    name = name_of(pid)
    return f"pid {pid} ({name})" if name else f"pid {pid}"
