"""Draining, because a plan or a request says so, and what takes it back."""

from __future__ import annotations

import pytest

from nodeagent.mps.lifecycle.model import (
    ClientsGone,
    DaemonPhase,
    DeadlinePassed,
    DrainGivenUp,
    DrainRequested,
    Ending,
    Exited,
    Kill,
    NewPlan,
    Quit,
    ReportSubject,
    RetryRequested,
    Schedule,
    SetLimits,
    Spawn,
    State,
    SweepOrphans,
)
from tests.mps.lifecycle.life import SPEC, Life, messages, subjects, undone


def test_ready_to_draining_to_down(ready: Life) -> None:
    """No longer wanted: it waits for its clients however long, asks, and is gone."""
    assert ready.tell(NewPlan(None)) == ()
    assert ready.phase() is DaemonPhase.DRAINING
    assert ready.tell(DeadlinePassed(), after=10**6) == ()
    assert ready.tell(ClientsGone(1)) == (Quit(1, 10.0), Schedule(10.0))
    actions = ready.tell(Exited(1, "status 0", 100.0))
    assert (subjects(actions), undone(actions)) == ([ReportSubject.DRAINED], [SweepOrphans(SPEC)])
    assert messages(actions) == ["the daemon was drained for the plan and has ended"]
    assert ready.state == State(run=1)


def test_a_daemon_that_does_not_quit(ready: Life) -> None:
    """Is killed when its time is over; it has no clients."""
    ready.tell(NewPlan(None))
    ready.tell(ClientsGone(1))
    assert Kill(1) in ready.tell(DeadlinePassed(), after=10.0)
    assert (ready.phase(), ready.state.ending) == (DaemonPhase.DRAINING, Ending.KILLING)


def test_a_drain_that_the_plan_takes_back(ready: Life) -> None:
    """While it only waits it goes back to work; once asked to end, it comes again."""
    ready.tell(NewPlan(None))
    assert SetLimits(1, SPEC) in ready.tell(NewPlan(SPEC))
    ready.tell(ready.proof())
    ready.tell(NewPlan(None))
    ready.tell(ClientsGone(1))
    ready.tell(NewPlan(SPEC))
    assert Spawn(2, SPEC) in ready.tell(Exited(1, "status 0", 100.0))


@pytest.mark.parametrize("force", [False, True])
def test_a_drain_on_request_with_a_deadline(ready: Life, force: bool) -> None:
    """In use when the time is over: by force it ends, else it is as before."""
    assert ready.tell(DrainRequested(30.0, force=force)) == (Schedule(30.0),)
    ready.tell(NewPlan(SPEC))  # the plan did not ask for the drain, so it does not end it
    assert ready.phase() is DaemonPhase.DRAINING
    actions = ready.tell(DeadlinePassed(), after=30.0)
    if force:
        assert actions == (Quit(1, 10.0), Schedule(10.0))
    else:
        assert subjects(actions) == [ReportSubject.STILL_IN_USE]
        assert ready.phase() is DaemonPhase.LIMITING


def test_drained_on_request_it_stays_down(ready: Life) -> None:
    """Until it is asked for, or a plan is new."""
    ready.tell(DrainRequested(None))
    ready.tell(ClientsGone(1))
    actions = ready.tell(Exited(1, "status 0", 100.0))
    assert messages(actions) == ["the daemon was drained on request and has ended"]
    assert (ready.phase(), ready.state.why) == (DaemonPhase.DOWN, "drained on request")
    assert Spawn(2, SPEC) in ready.tell(RetryRequested())


def test_a_drain_that_is_given_up(ready: Life) -> None:
    """A person's is taken back; a plan's is not, nor one whose end has begun."""
    ready.tell(DrainRequested(None))
    assert SetLimits(1, SPEC) in ready.tell(DrainGivenUp())
    ready.tell(ready.proof())
    assert ready.tell(DrainGivenUp()) == ()
    ready.tell(NewPlan(None))
    assert ready.tell(DrainGivenUp()) == ()
    assert ready.phase() is DaemonPhase.DRAINING
    ready.tell(ClientsGone(1))
    assert ready.tell(DrainGivenUp()) == ()


def test_a_restart_on_request(ready: Life) -> None:
    """Drained, then started again."""
    ready.tell(DrainRequested(None, then_start=True))
    ready.tell(ClientsGone(1))
    actions = ready.tell(Exited(1, "status 0", 100.0))
    assert Spawn(2, SPEC) in actions
    assert messages(actions) == [
        "the daemon was drained on request and has ended, to be started again"
    ]
