"""From a plan, or an adopted process, to Ready: an answer, limits that were set and read back."""

from __future__ import annotations

from nodeagent.mps.lifecycle.model import (
    Adopted,
    Answered,
    ClientsGone,
    DaemonPhase,
    DeadlinePassed,
    Exited,
    Kill,
    NewPlan,
    ReadBack,
    ReportSubject,
    Schedule,
    SetLimits,
    Spawn,
    SweepOrphans,
    Timeout,
)
from tests.mps.lifecycle.life import OTHER_LIMITS, OTHER_USER, SPEC, Life, subjects, undone
from tests.mps.plans import with_limits

# --- to Ready -------------------------------------------------------------------------------------


def test_down_to_starting() -> None:
    """A plan starts it, right after a sweep, and an answer is waited for."""
    life = Life()
    assert life.start() == (SweepOrphans(SPEC), Spawn(1, SPEC), Schedule(5.0))
    assert (life.phase(), life.state.pid) == (DaemonPhase.STARTING, 4711)


def test_starting_to_limiting_to_ready() -> None:
    """It answers, its limits are set and read back; only then it is Ready."""
    life = Life()
    life.start()
    assert life.tell(Answered(1)) == (SetLimits(1, SPEC), ReadBack(1, SPEC, 1), Schedule(4.0))
    assert life.phase() is DaemonPhase.LIMITING
    assert subjects(life.tell(life.proof())) == [ReportSubject.READY]
    assert (life.phase(), life.state.deadline, life.state.why) == (DaemonPhase.READY, None, "")


def test_limits_that_do_not_hold_before_ready() -> None:
    """They are set again; when that does not help either, the process is replaced."""
    life = Life()
    life.start()
    life.tell(Answered(1))
    assert SetLimits(1, SPEC) in life.tell(life.proof("memory 0, wanted 4096M"))
    actions = life.tell(life.proof("memory 0, wanted 4096M"))
    assert (subjects(actions), Kill(1) in actions) == ([ReportSubject.LIMITS_DIFFER], True)
    assert life.phase() is DaemonPhase.FAULT
    assert "memory 0, wanted 4096M" in life.state.why


def test_a_read_back_of_earlier_limits_proves_nothing() -> None:
    """Other limits were wanted meanwhile; the late answer is of the old ones."""
    life = Life()
    life.start()
    life.tell(Answered(1))
    late = life.proof()
    life.tell(NewPlan(OTHER_LIMITS))
    life.tell(late)
    assert life.phase() is DaemonPhase.LIMITING


def test_no_answer_after_the_start() -> None:
    """A deadline ends it; it is started anew only once its exit is known."""
    life = Life()
    life.start()
    assert life.tell(Timeout(1)) == ()
    assert life.tell(DeadlinePassed(), after=4.0) == (Schedule(1.0),)
    assert undone(life.tell(DeadlinePassed(), after=1.0)) == [Kill(1), Schedule(2.0)]
    actions = life.tell(DeadlinePassed(), after=2.0)
    assert subjects(actions) == [ReportSubject.CANNOT_BE_ENDED]
    assert "pid 4711 was killed but does not end" in life.state.why
    life.tell(Exited(1, "signal 9", 7.0))
    assert life.phase() is DaemonPhase.BACKOFF


def test_ready_to_limiting_when_limits_drift(ready: Life) -> None:
    """Someone changed them: they are put back, and it is not Ready meanwhile, nor ended."""
    actions = ready.tell(ready.proof("threads 100.0, wanted 50"))
    assert subjects(actions) == [ReportSubject.LIMITS_DIFFER]
    assert ready.phase() is DaemonPhase.LIMITING
    for delay in (1.0, 2.0, 4.0, 8.0, 8.0):  # it may have clients, so patience grows instead
        actions = ready.tell(ready.proof("threads 100.0, wanted 50"))
        assert undone(actions) == [Schedule(delay)]
        assert SetLimits(1, SPEC) in ready.tell(DeadlinePassed(), after=delay)
    ready.tell(ready.proof())
    assert ready.phase() is DaemonPhase.READY


# --- a plan that changed --------------------------------------------------------------------------


def test_the_same_plan_disturbs_nothing(ready: Life) -> None:
    """What fits is left alone."""
    before = ready.state
    assert ready.tell(NewPlan(SPEC)) == ()
    assert ready.state == before


def test_other_shares_with_the_same_limits_disturb_nothing(ready: Life) -> None:
    """The daemon has nothing to do: its clients are judged by them."""
    assert ready.tell(NewPlan(with_limits(SPEC, 4096, 50.0))) == ()
    assert ready.phase() is DaemonPhase.READY
    assert ready.state.running == ready.state.wanted != SPEC


def test_other_limits_need_no_other_process(ready: Life) -> None:
    """They are set while it runs, and it is Ready when they are read back."""
    assert SetLimits(1, OTHER_LIMITS) in ready.tell(NewPlan(OTHER_LIMITS))
    assert ready.phase() is DaemonPhase.LIMITING
    ready.tell(ready.proof())
    assert (ready.phase(), ready.state.running) == (DaemonPhase.READY, OTHER_LIMITS)


def test_another_user_needs_another_process(ready: Life) -> None:
    """Drained first, then started as the other."""
    ready.tell(NewPlan(OTHER_USER))
    ready.tell(ClientsGone(1))
    actions = ready.tell(Exited(1, "status 0", 100.0))
    assert undone(actions)[-3:] == [SweepOrphans(OTHER_USER), Spawn(2, OTHER_USER), Schedule(5.0)]
    assert ready.state.restarts == 0


# --- adoption, and what comes late ----------------------------------------------------------------


def test_down_to_starting_by_adoption() -> None:
    """An earlier agent's is not started again, but proven again; and never ended for limits."""
    life = Life()
    assert life.tell(Adopted(SPEC, 4711)) == (Schedule(5.0),)
    assert (life.phase(), life.state.wanted) == (DaemonPhase.STARTING, SPEC)
    life.tell(Answered(1))
    for _ in range(5):
        actions = life.tell(life.proof("memory 1G, wanted 4096M"))
        assert Kill(1) not in actions
        life.tell(DeadlinePassed(), after=10)
    life.tell(life.proof())
    assert life.phase() is DaemonPhase.READY


def test_only_what_is_down_is_adopted(ready: Life) -> None:
    """Never two processes."""
    assert ready.tell(Adopted(OTHER_USER, 1)) == ()
    assert ready.state.running == SPEC


def test_what_an_earlier_process_says_is_past(ready: Life) -> None:
    """It neither ends nor proves the present one."""
    ready.tell(Exited(1, "signal 9", 100.0))
    ready.tell(DeadlinePassed(), after=1.0)
    before = ready.state
    for event in (Exited(1, "signal 9", 1.0), Answered(1), Timeout(1), ClientsGone(1)):
        assert ready.tell(event) == ()
    assert ready.state == before
