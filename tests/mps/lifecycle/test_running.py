import pytest

from nodeagent.mps.lifecycle.model import (
    Adopted,
    Answered,
    ClientsGone,
    DaemonPhase,
    DeadlinePassed,
    DrainRequested,
    Event,
    Exited,
    ImpostorFound,
    Kill,
    NewPlan,
    Report,
    ReportSubject,
    RetryRequested,
    Schedule,
    SetLimits,
    Spawn,
    SweepOrphans,
    Timeout,
    Unreachable,
)
from nodeagent.mps.lifecycle.transitions import retry_delay
from tests.mps.lifecycle.conftest import OTHER_USER, POLICY, SPEC, Life, subjects, undone
from tests.mps.plans import with_limits

# --- to Ready -------------------------------------------------------------------------------------


def test_limits_that_do_not_hold_before_ready(life: Life) -> None:
    life.tell(Answered(1))
    assert SetLimits(1, SPEC) in life.tell(life.proof("memory 0, wanted 4096M"))
    actions = life.tell(life.proof("memory 0, wanted 4096M"))
    assert (subjects(actions), Kill(1) in actions) == ([ReportSubject.LIMITS_DIFFER], True)
    assert life.phase() is DaemonPhase.FAULT
    assert "memory 0, wanted 4096M" in life.state.why


def test_no_answer_after_the_start(life: Life) -> None:
    for _ in range(POLICY.most_silences):
        assert life.tell(Timeout(1)) == ()
    assert life.tell(DeadlinePassed(), after=4.0) == (Schedule(1.0),)
    assert undone(life.tell(DeadlinePassed(), after=1.0)) == [Kill(1), Schedule(2.0)]
    actions = life.tell(DeadlinePassed(), after=2.0)
    assert subjects(actions) == [ReportSubject.CANNOT_BE_ENDED]
    assert "pid 4711 was killed but does not end" in life.state.why
    life.tell(Exited(1, "signal 9", 7.0))
    assert (life.phase(), life.state.pid) == (DaemonPhase.BACKOFF, None)


def test_ready_to_limiting_when_limits_drift(ready: Life) -> None:
    for _ in range(2):
        actions = ready.tell(ready.proof("threads 100.0, wanted 50"))
        assert subjects(actions) == [ReportSubject.LIMITS_DIFFER]
        assert ready.phase() is DaemonPhase.LIMITING
        for delay in (1.0, 2.0, 4.0, 8.0, 8.0):  # it may have clients, so patience grows instead
            actions = ready.tell(ready.proof("threads 100.0, wanted 50"))
            assert undone(actions) == [Schedule(delay)]
            assert SetLimits(1, SPEC) in ready.tell(DeadlinePassed(), after=delay)
        assert subjects(ready.tell(ready.proof())) == [ReportSubject.READY]


# --- a plan that changed --------------------------------------------------------------------------


def test_other_shares_with_the_same_limits_disturb_nothing(ready: Life) -> None:
    assert ready.tell(NewPlan(with_limits(SPEC, 4096, 50.0))) == ()
    assert ready.phase() is DaemonPhase.READY
    assert ready.state.running == ready.state.wanted != SPEC


def test_another_user_needs_another_process(ready: Life) -> None:
    ready.tell(NewPlan(OTHER_USER))
    ready.tell(ClientsGone(1))
    actions = ready.tell(Exited(1, "status 0", 100.0))
    assert undone(actions)[-3:] == [SweepOrphans(OTHER_USER), Spawn(2, OTHER_USER), Schedule(5.0)]
    assert ready.state.restarts == 0


# --- adoption, and what comes late ----------------------------------------------------------------


def test_down_to_starting_by_adoption() -> None:
    life = Life()
    assert life.tell(Adopted(SPEC, 4711)) == (Schedule(5.0),)
    assert (life.phase(), life.state.wanted) == (DaemonPhase.STARTING, SPEC)
    assert "an earlier agent's" in life.state.why
    life.tell(Answered(1))
    for _ in range(5):
        actions = life.tell(life.proof("memory 1G, wanted 4096M"))
        assert Kill(1) not in actions
        life.tell(DeadlinePassed(), after=10)
    life.tell(life.proof())
    assert life.phase() is DaemonPhase.READY


# --- the end --------------------------------------------------------------------------------------


def test_ready_to_starting_when_it_was_steady(ready: Life) -> None:
    actions = ready.tell(Exited(1, "signal 9", 7200.0, ("last words",)))
    assert undone(actions) == [
        SweepOrphans(SPEC), SweepOrphans(SPEC), Spawn(2, SPEC), Schedule(5.0)
    ]  # fmt: skip
    assert actions[0] == Report(
        ReportSubject.EXITED, "the daemon ended after 7200.0 s: signal 9", ("last words",)
    )
    assert ready.phase() is DaemonPhase.STARTING
    assert (ready.state.restarts, ready.state.failures) == (1, 0)
    assert undone(ready.tell(Exited(2, "signal 9", 0.1))) == [SweepOrphans(SPEC), Schedule(1.0)]
    assert ready.phase() is DaemonPhase.BACKOFF


def test_backoff_to_failed_to_ready(life: Life) -> None:
    for delay in (1.0, 2.0):
        actions = life.tell(Exited(life.state.run, "status 1", 0.1))
        assert undone(actions) == [SweepOrphans(SPEC), Schedule(delay)]
        life.tell(DeadlinePassed(), after=delay)
    actions = life.tell(Exited(life.state.run, "status 1", 0.1, ("no device",)))
    assert subjects(actions) == [ReportSubject.EXITED, ReportSubject.FAILED]
    assert actions[1] == Report(ReportSubject.FAILED, life.state.why, ("no device",))
    assert "failed 3 times in a row and is tried every 8 s only" in life.state.why
    for run in range(4, 50):
        assert life.phase() is DaemonPhase.FAILED
        assert undone(actions) == [SweepOrphans(SPEC), Schedule(8.0)]
        assert Spawn(run, SPEC) in life.tell(DeadlinePassed(), after=8.0)
        actions = life.tell(Exited(run, "status 1", 0.1))
        assert subjects(actions) == [ReportSubject.EXITED]
    life.tell(DeadlinePassed(), after=8.0)
    life.tell(Answered(50))
    life.tell(life.proof())
    assert life.phase() is DaemonPhase.READY
    assert Spawn(51, SPEC) in life.tell(Exited(50, "signal 9", 60.0))
    assert life.state.failures == 0


@pytest.mark.parametrize("event", [RetryRequested(), NewPlan(SPEC)])
def test_failed_to_starting_on_request(life: Life, event: Event) -> None:
    for _ in range(3):
        life.tell(Exited(life.state.run, "status 1", 0.1))
        life.tell(DeadlinePassed(), after=9.0)
    life.tell(Exited(life.state.run, "status 1", 0.1))
    assert life.phase() is DaemonPhase.FAILED
    assert Spawn(5, SPEC) in life.tell(event)
    assert life.state.failures == 0


def test_chance_shortens_the_wait() -> None:
    assert [retry_delay(POLICY, 2, jitter) for jitter in (0.0, 0.5, 1.0)] == [2.0, 1.75, 1.5]
    assert retry_delay(POLICY, 10**6, 0.0) == 8.0


def test_backoff_is_not_cut_short_by_the_same_plan(life: Life) -> None:
    life.tell(Exited(1, "status 1", 0.1))
    assert life.tell(NewPlan(SPEC)) == ()
    assert Spawn(2, OTHER_USER) in life.tell(NewPlan(OTHER_USER))
    life.tell(Exited(2, "status 1", 0.1))
    assert Spawn(3, OTHER_USER) in life.tell(RetryRequested())


@pytest.mark.parametrize(
    ("event", "why"), [(NewPlan(None), ""), (DrainRequested(None), "drained on request")]
)
def test_nobody_wants_it_in_backoff(life: Life, event: Event, why: str) -> None:
    life.tell(Exited(1, "status 1", 0.1))
    assert life.tell(event) == ()
    assert (life.phase(), life.state.why) == (DaemonPhase.DOWN, why)
    assert life.tell(DeadlinePassed(), after=10) == ()


# --- a hung daemon --------------------------------------------------------------------------------


def test_ready_to_fault_when_it_answers_nothing(ready: Life) -> None:
    assert ready.tell(Timeout(1)) == ()
    ready.tell(Answered(1))
    assert ready.tell(Timeout(1)) == ()
    actions = ready.tell(Timeout(1))
    assert (subjects(actions), Kill(1) in actions) == ([ReportSubject.SILENT], True)
    assert ready.phase() is DaemonPhase.FAULT
    assert Spawn(2, SPEC) in ready.tell(Exited(1, "signal 9", 3600.0))


def test_ready_to_fault_when_another_listens_in_its_place(ready: Life) -> None:
    found = ImpostorFound(1, "pid 9 listens there")
    actions = ready.tell(found)
    assert (subjects(actions), Kill(1) in actions) == ([ReportSubject.REPLACED], True)
    assert ready.tell(found) == ()  # it ends already


def test_a_daemon_that_hangs_while_its_clients_finish(ready: Life) -> None:
    ready.tell(NewPlan(None))
    reports = [subjects(ready.tell(Timeout(1))) for _ in range(4)]
    assert reports == [[], [ReportSubject.SILENT], [], []]
    assert ready.phase() is DaemonPhase.DRAINING
    ready.tell(DrainRequested(9.0, force=True))
    assert Kill(1) in ready.tell(Timeout(1))


def test_a_killed_one_is_remembered_for_what_it_did(life: Life) -> None:
    for subject in (ReportSubject.EXITED, ReportSubject.EXITED, ReportSubject.FAILED):
        life.tell(DeadlinePassed(), after=5.0)
        actions = life.tell(Exited(life.state.run, "signal 9 (SIGKILL)", 5.0))
        assert subjects(actions)[-1] is subject
        assert "did not answer within 5 s of its start" in life.state.why
        assert "SIGKILL" not in life.state.why
        life.tell(DeadlinePassed(), after=9.0)


# --- one that cannot be asked ---------------------------------------------------------------------


def test_kept_out_is_reported_once_and_ends_nothing(ready: Life) -> None:
    reported = [subjects(ready.tell(Unreachable(1, reason))) for reason in ("a", "a", "b")]
    assert reported == [[ReportSubject.SILENT], [], [ReportSubject.SILENT]]
    assert (ready.phase(), ready.state.timeouts) == (DaemonPhase.READY, 0)
    ready.tell(Answered(1))
    assert subjects(ready.tell(Unreachable(1, "b"))) == [ReportSubject.SILENT]


def test_kept_out_from_an_adopted_daemon() -> None:
    """It may have clients, so no deadline ends it as long as that is the reason."""
    life = Life()
    life.tell(Adopted(SPEC, 4711))
    for _ in range(4):
        life.tell(Unreachable(1, "another front-end"))
        assert life.tell(DeadlinePassed(), after=5.0) == (Schedule(5.0),)
        assert (life.phase(), life.state.why) == (DaemonPhase.STARTING, "another front-end")
    assert Kill(1) in life.tell(DeadlinePassed(), after=5.0)  # now it is silent by itself


@pytest.mark.parametrize("later", [(), (Unreachable(1, "another front-end"), Answered(1))])
def test_kept_out_while_limits_are_set(life: Life, later: tuple[Event, ...]) -> None:
    life.tell(Answered(1))
    life.tell(Unreachable(1, "another front-end"))
    assert life.state.why == "another front-end"
    assert SetLimits(1, SPEC) in life.tell(DeadlinePassed(), after=4.0)
    for event in later:  # its silence counts again
        life.tell(event)
    assert Kill(1) in life.tell(DeadlinePassed(), after=4.0)
