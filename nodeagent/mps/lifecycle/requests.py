"""What a plan, a person or an earlier agent wants of a daemon, as transitions of its life. Pure."""

from __future__ import annotations

from nodeagent.mps.lifecycle.model import (
    WITH_PROCESS,
    Adopted,
    Drain,
    DrainRequested,
    Ending,
    Phase,
)
from nodeagent.mps.lifecycle.transitions import Transition, fresh
from nodeagent.mps.shares import DaemonSpec
from nodeagent.structs import replace


def new_plan(life: Transition, spec: DaemonSpec | None) -> None:
    """What is wanted now; what fits it is left alone."""
    before = life.state
    life.state = replace(before, wanted=spec)
    if before.phase in WITH_PROCESS:
        _new_plan_for_process(life, spec)
    elif spec is None:
        life.state = replace(life.state, phase=Phase.DOWN, deadline=None, failures=0, why="")
    elif before.phase is not Phase.BACKOFF or spec != before.wanted:
        # In Backoff the same plan changes nothing, so it waits on.
        life.state = replace(life.state, failures=0)
        life.start(spec)


def _new_plan_for_process(life: Transition, spec: DaemonSpec | None) -> None:
    state = life.state
    must_end = spec is None or state.spec.needs_restart_for(spec)
    if state.phase is Phase.DRAINING or state.ending is not Ending.NO:
        _new_plan_while_ending(life, spec, must_end=must_end)
    elif spec is None or must_end:
        drain = Drain(by_plan=True, then_start=spec is not None)
        other_shm = spec is not None and spec.private_shm != state.spec.private_shm
        why = "it has another /dev/shm than mps.shm says" if other_shm else "a new plan"
        life.state = replace(state, phase=Phase.DRAINING, drain=drain, deadline=None, why=why)
    elif spec != state.running:
        life.state = replace(state, running=spec, attempts=0)
        if state.phase in {Phase.LIMITING, Phase.READY}:
            life.limit("a new plan has other limits")
        # Else its way to Ready leads through the new limits anyway.


def _new_plan_while_ending(life: Transition, spec: DaemonSpec | None, *, must_end: bool) -> None:
    state = life.state
    drain = state.drain
    if must_end:
        drain = replace(drain, by_plan=True, then_start=spec is not None)
        life.state = replace(state, phase=Phase.DRAINING, drain=drain)
    elif state.phase is not Phase.DRAINING or not drain.by_plan:
        return  # it hangs and comes back by itself, or a person drains it
    elif state.ending is Ending.NO:
        life.resume("wanted again")
    else:
        life.state = replace(state, drain=replace(drain, then_start=True))


def drain_requested(life: Transition, event: DrainRequested) -> None:
    """A person wants it without clients; a drain by the plan keeps what comes after it."""
    state = life.state
    if state.phase in {Phase.BACKOFF, Phase.FAILED} and not event.then_start:
        life.state = replace(
            state, phase=Phase.DOWN, deadline=None, failures=0, why="drained on request"
        )
    if state.phase not in WITH_PROCESS:
        return
    before = state.drain
    then_start = before.then_start if before.by_plan else event.then_start
    drain = Drain(force=event.force, then_start=then_start, by_plan=before.by_plan)
    life.state = replace(state, phase=Phase.DRAINING, drain=drain, why="drained on request")
    if state.ending is not Ending.NO:
        return  # its end is near anyway, with a deadline of its own
    if event.seconds is None:
        life.state = replace(life.state, deadline=None)
    else:
        life.wait(event.seconds)


def drain_given_up(life: Transition) -> None:
    """A drain that a person requested and withdrew; what a plan wants stays wanted."""
    state, drain = life.state, life.state.drain
    if state.phase is Phase.DRAINING and state.ending is Ending.NO and not drain.by_plan:
        life.resume("not drained: the request was withdrawn")


def adopted(life: Transition, event: Adopted) -> None:
    """Take over what an earlier agent left running; its limits are proven again."""
    if life.state.phase is not Phase.DOWN:
        return
    life.state = replace(
        fresh(life.state, event.spec),
        wanted=event.spec,
        pid=event.pid,
        was_ready=True,  # so it may have clients
        why="an earlier agent's; has not answered yet",
    )
    life.wait(life.settings.start_deadline)
