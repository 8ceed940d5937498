"""What follows from what a person or a plan wants of a daemon. Pure."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.mps.lifecycle.model import (
    WITH_PROCESS,
    Adopted,
    Drain,
    DrainRequested,
    Ending,
    Phase,
    Policy,
    Schedule,
    State,
)
from nodeagent.mps.lifecycle.transitions import Step, fresh, limit, resume, start
from nodeagent.mps.shares import DaemonSpec


def new_plan(state: State, spec: DaemonSpec | None, now: float, policy: Policy) -> Step:
    """What is wanted now; what fits it is left alone."""
    same = spec == state.wanted
    state = replace(state, wanted=spec)
    if state.phase in WITH_PROCESS:
        return _new_plan_for_process(state, spec, now, policy)
    if spec is None:
        return Step(replace(state, phase=Phase.DOWN, deadline=None, failures=0, why=""))
    if state.phase is Phase.BACKOFF and same:
        return Step(state)  # nothing is different for it, so it waits on
    return start(replace(state, failures=0), spec, now, policy)


def _new_plan_for_process(
    state: State, spec: DaemonSpec | None, now: float, policy: Policy
) -> Step:
    must_end = spec is None or state.spec.needs_restart_for(spec)
    if state.phase is Phase.DRAINING or state.ending is not Ending.NO:
        return _new_plan_while_ending(state, spec, now, policy, must_end=must_end)
    if spec is None or must_end:
        drain = Drain(by_plan=True, then_start=spec is not None)
        return Step(
            replace(state, phase=Phase.DRAINING, drain=drain, deadline=None, why="a new plan")
        )
    if spec == state.running:
        return Step(state)
    state = replace(state, running=spec, attempts=0)
    if state.phase in {Phase.LIMITING, Phase.READY}:
        return limit(state, now, policy, why="a new plan has other limits")
    return Step(state)  # its way to Ready leads through the new limits anyway


def _new_plan_while_ending(
    state: State, spec: DaemonSpec | None, now: float, policy: Policy, *, must_end: bool
) -> Step:
    drain = state.drain or Drain()
    if must_end:
        drain = replace(drain, by_plan=True, then_start=spec is not None)
        return Step(replace(state, phase=Phase.DRAINING, drain=drain))
    if state.phase is not Phase.DRAINING or not drain.by_plan:
        return Step(state)  # it hangs and comes back by itself, or a person drains it
    if state.ending is Ending.NO:
        return resume(state, now, policy, why="wanted again")
    return Step(replace(state, drain=replace(drain, then_start=True)))


def drain_requested(state: State, event: DrainRequested, now: float) -> Step:
    """Someone wants it drained, or its end is already near."""
    if state.phase in {Phase.BACKOFF, Phase.FAILED} and not event.then_start:
        down = replace(state, phase=Phase.DOWN, deadline=None, failures=0)
        return Step(replace(down, why="drained on request"))
    if state.phase not in WITH_PROCESS:
        return Step(state)
    by_plan = state.drain is not None and state.drain.by_plan
    then_start = state.drain.then_start if by_plan and state.drain else event.then_start
    drain = Drain(force=event.force, then_start=then_start, by_plan=by_plan)
    state = replace(state, phase=Phase.DRAINING, drain=drain, why="drained on request")
    if state.ending is not Ending.NO:
        return Step(state)  # its end is near anyway, with a deadline of its own
    if event.seconds is None:
        return Step(replace(state, deadline=None))
    return Step(replace(state, deadline=now + event.seconds), (Schedule(event.seconds),))


def drain_given_up(state: State, now: float, policy: Policy) -> Step:
    """A drain that a person asked for, and nobody any more; what a plan wants stays wanted."""
    by_person = state.drain is not None and not state.drain.by_plan
    if state.phase is not Phase.DRAINING or state.ending is not Ending.NO or not by_person:
        return Step(state)
    return resume(state, now, policy, why="not drained: nobody waits for it any more")


def adopt(state: State, event: Adopted, now: float, policy: Policy) -> Step:
    """Take over what an earlier agent left running; its limits are proven again."""
    if state.phase is not Phase.DOWN:
        return Step(state)
    adopted = replace(
        fresh(state, event.spec),
        wanted=event.spec,
        pid=event.pid,
        was_ready=True,  # so it may have clients
        deadline=now + policy.start_deadline,
        why="an earlier agent's; has not answered yet",
    )
    return Step(adopted, (Schedule(policy.start_deadline),))
