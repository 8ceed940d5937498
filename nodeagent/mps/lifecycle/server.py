"""What follows from what a daemon's server and its clients do. Pure."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.mps.lifecycle.model import (
    Action,
    Ending,
    ForeignUserWaiting,
    Phase,
    Policy,
    ReadBack,
    Report,
    Server,
    ServerGone,
    ServerStatus,
    State,
    Subject,
)
from nodeagent.mps.lifecycle.transitions import Step, initializing, limit, server_fault


def server_seen(state: State, server: Server, now: float, policy: Policy) -> Step:
    """The daemon says of its server what it did not say before."""
    if server == state.server:
        return Step(state)
    before = state.server
    new = before is None or before.pid != server.pid
    named = server.culprit is not None and (before is None or before.culprit != server.culprit)
    reports = _wrong_user(state, server) if new else ()
    state = replace(state, server=server)
    if named and state.phase is Phase.FAULT and state.ending is Ending.NO:
        fault = server_fault(state, server)
        return Step(fault.state, (*reports, *fault.actions))
    after = _server_changed(state, server, now, policy, new=new)
    return Step(after.state, (*reports, *after.actions))


def _server_changed(state: State, server: Server, now: float, policy: Policy, *, new: bool) -> Step:
    if state.ending is not Ending.NO:
        return Step(state)
    match state.phase, server.status:
        case Phase.READY | Phase.LIMITING, ServerStatus.FAULT:
            return server_fault(state, server)
        case Phase.FAULT, ServerStatus.ACTIVE:
            return limit(replace(state, attempts=0), now, policy, why="its server was faulted")
        case Phase.READY, status:
            # What a server has are the defaults of the moment it started.
            read = (ReadBack(state.run, state.spec, state.reading),) if new else ()
            if status is ServerStatus.INITIALIZING:
                waiting = initializing(state, now, policy)
                return Step(waiting.state, (*read, *waiting.actions))
            return Step(replace(state, deadline=None), read)
        case _:
            return Step(state)


def server_gone(state: State, event: ServerGone, now: float, policy: Policy) -> Step:
    """A server that is gone takes its fault with it."""
    reports: tuple[Action, ...] = ()
    if event.status:
        words = f"server {event.pid} ended: {event.status}"
        reports = (Report(Subject.SERVER_EXITED, words, event.last_lines),)
    if state.server is None or state.server.pid != event.pid:
        return Step(state, reports)
    state = replace(state, server=None)
    if state.phase is Phase.READY:
        state = replace(state, deadline=None)
    if state.phase is Phase.FAULT and state.ending is Ending.NO:
        limiting = limit(replace(state, attempts=0), now, policy, why="its server was faulted")
        return Step(limiting.state, (*reports, *limiting.actions))
    return Step(state, reports)


def _wrong_user(state: State, server: Server) -> tuple[Report, ...]:
    spec = state.spec
    if server.uid is None or spec.multi_user or server.uid == spec.uid:
        return ()
    words = (
        f"server {server.pid} runs as user {server.uid}, the plan wants {spec.uid}, whose "
        "clients wait until it has gone"
    )
    return (Report(Subject.WRONG_SERVER_USER, words),)


def foreign_user(state: State, event: ForeignUserWaiting) -> Report:
    """Say who waits, for whom, and what to do."""
    who = f"pid {event.pid} ({event.command})" if event.command else f"pid {event.pid}"
    server = state.server
    if server is None:
        holder = f"the plan wants user {state.spec.uid}"
    else:
        user = "" if server.uid is None else f" of user {server.uid}"
        holder = f"server {server.pid}{user} holds the device"
    return Report(
        Subject.FOREIGN_USER_WAITING,
        f"{who} of user {event.uid} waits and will not be served: {holder}; run it as user "
        f"{state.spec.uid}, or change the plan's user",
    )
