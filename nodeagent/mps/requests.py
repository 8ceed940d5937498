"""What people and plans ask of one daemon (stop, drain, restart), and how it is shown."""

import asyncio

from nodeagent.errors import NodeagentError, StillInUse
from nodeagent.mps.files.directories import remove_directories
from nodeagent.mps.lifecycle import model
from nodeagent.mps.lifecycle.model import WITH_PROCESS, DaemonPhase, Ending
from nodeagent.mps.supervisor import Supervisor
from nodeagent.plan.observed import DeviceDaemon
from nodeagent.plan.remedies import in_use_remedy
from nodeagent.plan.users import IDLE, Usage, User
from nodeagent.processes import name_of
from nodeagent.views.mps import share_shapes, user_id
from nodeagent.views.shapes import MpsClient, MpsDaemon, MpsServer
from nodeagent.views.text import time_json
from nodeagent.waiting import ends_within

_KILLS = 3  # repeated kills, after which its end is not waited for any longer
_SLACK = 1.0  # seconds by which a drain may end late


class NotReady(NodeagentError):
    """A daemon is not Ready; the message says why, with the last lines of its log."""


async def wait_until_ready(supervisor: Supervisor) -> None:
    """Wait until the daemon is Ready; raises NotReady."""

    def is_ready() -> bool:
        state = supervisor.state
        return state.phase is DaemonPhase.READY and state.running == state.wanted

    if not _has_failed(supervisor):
        decided = supervisor.until(lambda: is_ready() or _has_failed(supervisor))
        await ends_within(supervisor.context.start_timeout, decided)
    if is_ready():
        return
    state = supervisor.state
    said = f"; its log ends: {' / '.join(supervisor.last_lines)}" if supervisor.last_lines else ""
    why, device = f"{state.phase}: {state.why or 'not Ready'}{said}", supervisor.device
    if state.phase is DaemonPhase.FAILED:
        raise NotReady.of("daemonFailed", device=device, why=why)
    raise NotReady.of("daemonNotReady", device=device, why=why, logs=supervisor.log_directory)


async def stop(supervisor: Supervisor) -> None:
    """Stop a daemon and remove all it had. Raises StillInUse while it has clients, which run on."""
    wanted = supervisor.wanted
    supervisor.want(None)
    try:
        await _wait_until_unused(supervisor)
    except BaseException:
        supervisor.want(wanted)
        raise
    await _remove(supervisor)


async def end(supervisor: Supervisor) -> None:
    """End a daemon whatever its clients; for a device that is gone."""
    supervisor.want(None)
    supervisor.handle(model.DrainRequested(0.0, force=True))
    await _remove(supervisor)


async def drain(supervisor: Supervisor, *, seconds: float | None, force: bool) -> tuple[int, ...]:
    """Wait until the daemon is Down, or the time is over; return the pids of the clients left.
    Raises StillInUse if it is not Down and its clients are not known; NodeagentError if it is Down
    and orphans of it cannot be ended.
    """
    supervisor.handle(model.DrainRequested(seconds, force=force))
    if supervisor.monitor is not None:
        supervisor.monitor.poll_soon()  # without clients it need not wait for the next poll
    patience = None if seconds is None or force else seconds + _SLACK
    drained = supervisor.until(lambda: supervisor.state.phase is not DaemonPhase.DRAINING)
    try:
        await ends_within(patience, drained)  # a plan that wants it drained, too, goes on waiting
    except asyncio.CancelledError:
        supervisor.handle(model.DrainGivenUp())
        raise
    if supervisor.state.phase not in WITH_PROCESS:
        await supervisor.until(lambda: supervisor.is_idle)
        if supervisor.sweep_failure:  # its cause may have passed, and nothing else would try again
            await _sweep(supervisor)
        return ()
    left = tuple(pid for _, pid in supervisor.clients)
    if not left:  # not known, which must not pass for none
        raise _not_known(supervisor)
    return left


async def restart(supervisor: Supervisor, *, force: bool) -> None:
    """Replace the daemon's process, and wait until the new one is Ready."""
    run = supervisor.state.run
    if supervisor.state.phase not in WITH_PROCESS:
        supervisor.handle(model.RetryRequested())
    else:
        supervisor.handle(
            model.DrainRequested(0.0 if force else None, force=force, then_start=True)
        )
        if not force:
            try:
                await _wait_until_unused(supervisor)
            except BaseException:
                supervisor.handle(model.DrainGivenUp())
                raise
        await supervisor.until(lambda: supervisor.state.run != run or _has_failed(supervisor))
    await wait_until_ready(supervisor)


def _has_failed(supervisor: Supervisor) -> bool:
    """Whether its start has failed; it is Down if its device went away during a restart."""
    return supervisor.state.phase in {DaemonPhase.BACKOFF, DaemonPhase.FAILED, DaemonPhase.DOWN}


async def _wait_until_unused(supervisor: Supervisor) -> None:
    """Wait until the daemon begins to end, which it does without clients; raises StillInUse."""
    run, monitor = supervisor.state.run, supervisor.monitor
    polls = monitor.polls if monitor else 0
    if monitor:
        monitor.poll_soon()

    def is_ending() -> bool:
        state = supervisor.state
        ends = state.ending is not Ending.NO or state.phase not in WITH_PROCESS
        return ends or state.run != run

    def has_clients() -> bool:
        now = supervisor.monitor
        if now is None or now.seen is None or not now.seen_hidden or not now.seen.clients:
            return False
        return now is not monitor or now.polls > polls

    known = supervisor.until(lambda: is_ending() or has_clients())
    is_known = await ends_within(2 * supervisor.context.settings.answer_deadline, known)
    if not is_ending():
        if not is_known:
            raise _not_known(supervisor)
        clients = ", ".join(_with_command(pid) for _, pid in supervisor.clients)
        raise StillInUse(
            f"the MPS daemon of {supervisor.device} has clients: {clients}",
            remedy=in_use_remedy(Usage(tuple(User(pid) for _, pid in supervisor.clients))),
        )


def _not_known(supervisor: Supervisor) -> StillInUse:
    monitor, seen = supervisor.monitor, supervisor.seen
    why = supervisor.state.unreachable or (monitor.sockets_fault if monitor else "")
    if not why and seen is not None:
        why = seen.usage.reason
    return StillInUse.of(
        "clientsUnknown",
        device=supervisor.device,
        why=why or "it does not answer, and has a server",
    )


async def _remove(supervisor: Supervisor) -> None:
    """Wait until the daemon has ended, and remove what is left of it; raises NodeagentError."""
    settings = supervisor.context.settings
    patience = settings.quit_deadline + _KILLS * settings.kill_deadline + settings.answer_deadline
    ended = supervisor.until(
        lambda: supervisor.state.phase not in WITH_PROCESS and supervisor.is_idle
    )
    if not await ends_within(patience, ended):
        state, device = supervisor.state, supervisor.device
        raise NodeagentError.of("daemonStays", device=device, pid=state.pid, why=state.why)
    await _sweep(supervisor)
    await asyncio.to_thread(remove_directories, supervisor.context.run_dir, supervisor.device)


async def _sweep(supervisor: Supervisor) -> None:
    """End the daemon's orphans; raises NodeagentError for those that remain."""
    if supervisor.wanted is not None:
        await supervisor.sweep(supervisor.spec_of(supervisor.wanted))
    if supervisor.sweep_failure:
        raise NodeagentError(supervisor.sweep_failure)


def _with_command(pid: int) -> str:
    name = name_of(pid)
    return f"pid {pid} ({name})" if name else f"pid {pid}"


def device_daemon(supervisor: Supervisor) -> DeviceDaemon | None:
    """What the planner has to know of the daemon; None when the device is to have none."""
    if supervisor.wanted is None:
        return None
    state, seen = supervisor.state, supervisor.seen
    return DeviceDaemon(
        runs=supervisor.wanted,
        state=state.phase,
        why=state.why,
        pid=state.pid,
        servers=seen.servers_of(state.spec.uid) if seen else (),
        clients=_usage(supervisor),
    )


def _usage(supervisor: Supervisor) -> Usage:
    if supervisor.state.phase not in WITH_PROCESS:
        return IDLE
    if supervisor.seen is not None:
        return supervisor.seen.usage
    if supervisor.state.was_ready:
        return Usage(known=False, reason="its MPS daemon has not answered yet")
    return IDLE  # it was started just now, and not published yet


def daemon_shape(supervisor: Supervisor) -> MpsDaemon:
    """What the API shows of the daemon."""
    state, log = supervisor.state, supervisor.monitor.events if supervisor.monitor else None
    server, wanted = state.server, supervisor.wanted
    has_failed = state.phase in {DaemonPhase.FAILED, DaemonPhase.BACKOFF}
    cordon = f"takes no new clients: {supervisor.cordoned}" if supervisor.cordoned else ""
    return MpsDaemon(
        device=supervisor.device,
        devices=wanted.devices if wanted else (),
        state=state.phase,
        why=state.why,
        since=time_json(supervisor.since),
        pid=state.pid,
        user=user_id(wanted.account) if wanted else None,
        restarts=state.restarts,
        pipe_directory=supervisor.pipe_directory,
        enforce=wanted.sharing.enforce if wanted else "",
        shares=share_shapes(wanted.sharing) if wanted else None,
        server=MpsServer(pid=server.pid, user=server.uid, status=server.status) if server else None,
        clients=tuple(MpsClient(pid=pid) for _, pid in supervisor.clients),
        waiting=log.blocked.waiting if log else (),
        last_lines=supervisor.last_lines if has_failed else (),
        trouble=cordon or state.unreachable or (log.trouble if log else ""),
    )
