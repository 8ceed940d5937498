"""What one daemon looks like to those outside: the planner, and people. Only looks."""

from __future__ import annotations

from nodeagent.mps.adoption import servers_in, usage_of
from nodeagent.mps.lifecycle.model import WITH_PROCESS, Phase
from nodeagent.mps.supervisor import Supervisor
from nodeagent.plan.observed import MpsDaemon
from nodeagent.plan.users import IDLE, Usage
from nodeagent.views.mps_state import ClientState, DaemonState
from nodeagent.views.shapes import MpsServer


def planners_view(supervisor: Supervisor) -> MpsDaemon | None:
    """As the planner sees it; None when the device is to have none."""
    if supervisor.wanted is None:
        return None
    state, seen = supervisor.state, supervisor.seen
    return MpsDaemon(
        runs=supervisor.wanted,
        state=state.phase,
        why=state.why,
        pid=state.pid,
        servers=servers_in(seen, state.running) if seen else (),
        clients=_usage(supervisor),
    )


def _usage(supervisor: Supervisor) -> Usage:
    if supervisor.state.phase not in WITH_PROCESS:
        return IDLE
    if supervisor.seen is not None:
        return usage_of(supervisor.seen)
    if supervisor.state.was_ready:
        return Usage(known=False, reason="its MPS daemon has not answered yet")
    return IDLE  # it was started just now, and not published yet


def daemon_state(supervisor: Supervisor) -> DaemonState:
    """As people see it."""
    state, log = supervisor.state, supervisor.monitor.events if supervisor.monitor else None
    server = state.server
    useless = state.phase in {Phase.FAILED, Phase.BACKOFF}
    closed = f"takes no new clients: {supervisor.closed}" if supervisor.closed else ""
    return DaemonState(
        device=supervisor.device,
        phase=state.phase,
        wanted=supervisor.wanted,
        why=state.why,
        pid=state.pid,
        restarts=state.restarts,
        pipe_directory=supervisor.pipe_directory,
        since=supervisor.since,
        server=MpsServer(pid=server.pid, user=server.uid, status=server.status) if server else None,
        clients=tuple(ClientState(pid) for _, pid in supervisor.clients),
        waiting=log.blocked.waiting if log else (),
        last_lines=supervisor.last_lines if useless else (),
        trouble=closed or state.kept_out or (log.trouble if log else ""),
    )
