"""Each arrow of a daemon's life, by name."""

from __future__ import annotations

import pytest

from nodeagent.mps.lifecycle.model import (
    Adopted,
    Answered,
    ClientsGone,
    DeadlinePassed,
    DrainGivenUp,
    DrainRequested,
    Ending,
    Exited,
    ForeignUserWaiting,
    KeptOut,
    Kill,
    NewPlan,
    Phase,
    Quit,
    ReadBack,
    Report,
    RetryRequested,
    Schedule,
    Server,
    ServerGone,
    ServerSeen,
    ServerStatus,
    SetLimits,
    Silent,
    Spawn,
    StartFailed,
    State,
    Subject,
    SweepOrphans,
)
from nodeagent.mps.lifecycle.transitions import retry_delay
from tests.mps.lifecycle.life import (
    OTHER_LIMITS,
    OTHER_USER,
    POLICY,
    SPEC,
    Life,
    subjects,
    undone,
)


@pytest.fixture
def ready() -> Life:
    """A daemon that is Ready."""
    life = Life()
    life.become_ready()
    assert life.phase() is Phase.READY
    return life


def seen(life: Life, status: ServerStatus, *, pid: int = 50, uid: int = 1000) -> ServerSeen:
    """Its server, now."""
    return ServerSeen(life.state.run, Server(pid, uid, status))


# --- to Ready -------------------------------------------------------------------------------------


def test_down_to_starting() -> None:
    """A plan starts it, right after a sweep, and an answer is waited for."""
    life = Life()
    assert life.start() == (SweepOrphans(SPEC), Spawn(1, SPEC), Schedule(5.0))
    assert (life.phase(), life.state.pid) == (Phase.STARTING, 4711)


def test_starting_to_limiting_to_ready() -> None:
    """It answers, its limits are set and read back; only then it is Ready."""
    life = Life()
    life.start()
    assert life.tell(Answered(1)) == (SetLimits(1, SPEC), ReadBack(1, SPEC, 1), Schedule(4.0))
    assert life.phase() is Phase.LIMITING
    assert subjects(life.tell(life.proof())) == [Subject.READY]
    assert (life.phase(), life.state.deadline, life.state.why) == (Phase.READY, None, "")


def test_limits_that_do_not_hold_before_ready() -> None:
    """They are set again; when that does not help either, the process is replaced."""
    life = Life()
    life.start()
    life.tell(Answered(1))
    assert SetLimits(1, SPEC) in life.tell(life.proof("memory 0, wanted 4096M"))
    actions = life.tell(life.proof("memory 0, wanted 4096M"))
    assert (subjects(actions), Kill(1) in actions) == ([Subject.LIMITS_DIFFER], True)
    assert life.phase() is Phase.FAULT
    assert "memory 0, wanted 4096M" in life.state.why


def test_a_read_back_of_earlier_limits_proves_nothing() -> None:
    """Other limits were wanted meanwhile; the late answer is of the old ones."""
    life = Life()
    life.start()
    life.tell(Answered(1))
    late = life.proof()
    life.tell(NewPlan(OTHER_LIMITS))
    life.tell(late)
    assert life.phase() is Phase.LIMITING


def test_no_answer_after_the_start() -> None:
    """A deadline ends it; it is started anew only once its exit is known."""
    life = Life()
    life.start()
    assert life.tell(Silent(1)) == ()
    assert life.tell(DeadlinePassed(), after=4.0) == (Schedule(1.0),)
    assert undone(life.tell(DeadlinePassed(), after=1.0)) == [Kill(1), Schedule(2.0)]
    actions = life.tell(DeadlinePassed(), after=2.0)
    assert subjects(actions) == [Subject.CANNOT_BE_ENDED]
    assert "pid 4711 was killed but does not end" in life.state.why
    life.tell(Exited(1, "signal 9", 7.0))
    assert life.phase() is Phase.BACKOFF


def test_ready_to_limiting_when_limits_drift(ready: Life) -> None:
    """Someone changed them: they are put back, and it is not Ready meanwhile, nor ended."""
    actions = ready.tell(ready.proof("threads 100.0, wanted 50"))
    assert subjects(actions) == [Subject.LIMITS_DIFFER]
    assert ready.phase() is Phase.LIMITING
    for delay in (1.0, 2.0, 4.0, 8.0, 8.0):  # it may have clients, so patience grows instead
        actions = ready.tell(ready.proof("threads 100.0, wanted 50"))
        assert undone(actions) == [Schedule(delay)]
        assert SetLimits(1, SPEC) in ready.tell(DeadlinePassed(), after=delay)
    ready.tell(ready.proof())
    assert ready.phase() is Phase.READY


# --- the end --------------------------------------------------------------------------------------


def test_ready_to_starting_when_it_was_steady(ready: Life) -> None:
    """Killed after a long run: swept, and started again at once; only then does it back off."""
    actions = ready.tell(Exited(1, "signal 9", 7200.0, ("last words",)))
    assert undone(actions) == [
        SweepOrphans(SPEC), SweepOrphans(SPEC), Spawn(2, SPEC), Schedule(5.0)
    ]  # fmt: skip
    assert actions[0] == Report(
        Subject.EXITED, "the daemon ended after 7200.0 s: signal 9", ("last words",)
    )
    assert ready.phase() is Phase.STARTING
    assert (ready.state.restarts, ready.state.failures) == (1, 0)
    assert undone(ready.tell(Exited(2, "signal 9", 0.1))) == [SweepOrphans(SPEC), Schedule(1.0)]
    assert ready.phase() is Phase.BACKOFF


def test_backoff_to_failed_to_ready() -> None:
    """Quick failures wait twice as long each time. After so many that is reported once, and it is
    tried at the longest delay until it is Ready.
    """
    life = Life()
    life.start()
    for delay in (1.0, 2.0):
        actions = life.tell(Exited(life.state.run, "status 1", 0.1))
        assert undone(actions) == [SweepOrphans(SPEC), Schedule(delay)]
        life.tell(DeadlinePassed(), after=delay)
    actions = life.tell(Exited(life.state.run, "status 1", 0.1, ("no device",)))
    assert subjects(actions) == [Subject.EXITED, Subject.FAILED]
    assert actions[1] == Report(Subject.FAILED, life.state.why, ("no device",))
    assert "failed 3 times in a row and is tried every 8 s only" in life.state.why
    for run in range(4, 50):
        assert life.phase() is Phase.FAILED
        assert undone(actions) == [SweepOrphans(SPEC), Schedule(8.0)]
        assert Spawn(run, SPEC) in life.tell(DeadlinePassed(), after=8.0)
        actions = life.tell(Exited(run, "status 1", 0.1))
        assert subjects(actions) == [Subject.EXITED]
    life.tell(DeadlinePassed(), after=8.0)
    life.tell(Answered(50))
    life.tell(life.proof())
    assert life.phase() is Phase.READY
    assert Spawn(51, SPEC) in life.tell(Exited(50, "signal 9", 60.0))
    assert life.state.failures == 0


def test_failed_to_starting_on_request() -> None:
    """At once, and earlier failures no longer count."""
    life = Life()
    life.start()
    for _ in range(3):
        life.tell(Exited(life.state.run, "status 1", 0.1))
        life.tell(DeadlinePassed(), after=9.0)
    life.tell(Exited(life.state.run, "status 1", 0.1))
    assert life.phase() is Phase.FAILED
    assert Spawn(5, SPEC) in life.tell(RetryRequested())
    assert life.state.failures == 0


def test_failed_to_starting_by_a_new_plan() -> None:
    """Even one that wants the same here: perhaps what was wrong is another thing in it."""
    life = Life()
    life.start()
    for _ in range(2):
        life.tell(Exited(life.state.run, "status 1", 0.1))
        life.tell(DeadlinePassed(), after=9.0)
    life.tell(Exited(life.state.run, "status 1", 0.1))
    assert life.phase() is Phase.FAILED
    assert Spawn(4, SPEC) in life.tell(NewPlan(SPEC))


def test_a_program_that_cannot_be_run() -> None:
    """That is a quick failure too, reported with its reason."""
    life = Life()
    life.start()
    actions = life.tell(StartFailed(1, "nvidia-cuda-mps-control is not there"))
    assert subjects(actions) == [Subject.START_FAILED]
    assert (life.phase(), life.state.failures) == (Phase.BACKOFF, 1)


def test_chance_shortens_the_wait() -> None:
    """By up to a quarter, never lengthens it."""
    assert [retry_delay(POLICY, 2, jitter) for jitter in (0.0, 0.5, 1.0)] == [2.0, 1.75, 1.5]
    assert retry_delay(POLICY, 10**6, 0.0) == 8.0


def test_backoff_is_not_cut_short_by_the_same_plan() -> None:
    """Nothing is different; another spec or a request is something else."""
    life = Life()
    life.start()
    life.tell(Exited(1, "status 1", 0.1))
    assert life.tell(NewPlan(SPEC)) == ()
    assert Spawn(2, OTHER_USER) in life.tell(NewPlan(OTHER_USER))
    life.tell(Exited(2, "status 1", 0.1))
    assert Spawn(3, OTHER_USER) in life.tell(RetryRequested())


def test_no_plan_in_backoff() -> None:
    """It stays down."""
    life = Life()
    life.start()
    life.tell(Exited(1, "status 1", 0.1))
    assert life.tell(NewPlan(None)) == ()
    assert life.phase() is Phase.DOWN
    assert life.tell(DeadlinePassed(), after=10) == ()
    assert life.tell(RetryRequested()) == ()


def test_a_drain_in_backoff() -> None:
    """It is not started again, and its state says why."""
    life = Life()
    life.start()
    life.tell(Exited(1, "status 1", 0.1))
    assert life.tell(DrainRequested(None)) == ()
    assert (life.phase(), life.state.why) == (Phase.DOWN, "drained on request")
    assert life.tell(DeadlinePassed(), after=10) == ()


# --- a hung daemon --------------------------------------------------------------------------------


def test_ready_to_fault_when_it_answers_nothing(ready: Life) -> None:
    """One unanswered question is forgiven, two in a row are not; then it is replaced."""
    assert ready.tell(Silent(1)) == ()
    ready.tell(Answered(1))
    assert ready.tell(Silent(1)) == ()
    actions = ready.tell(Silent(1))
    assert (subjects(actions), Kill(1) in actions) == ([Subject.SILENT], True)
    assert ready.phase() is Phase.FAULT
    assert Spawn(2, SPEC) in ready.tell(Exited(1, "signal 9", 3600.0))


def test_a_daemon_that_hangs_while_its_clients_finish(ready: Life) -> None:
    """Clients may work on without it, so a drain only says so, once."""
    ready.tell(NewPlan(None))
    reports = [subjects(ready.tell(Silent(1))) for _ in range(4)]
    assert reports == [[], [Subject.SILENT], [], []]
    assert ready.phase() is Phase.DRAINING


def test_why_it_is_found_to_hang(ready: Life) -> None:
    """Where more is known than its silence, that is reported."""
    ready.tell(Silent(1, "nobody is at its socket"))
    ready.tell(Silent(1, "nobody is at its socket"))
    assert "in a row (nobody is at its socket); it is replaced" in ready.state.why


def test_a_killed_one_is_remembered_for_what_it_did() -> None:
    """The signal was ours, and says nothing; neither does the end of the last try."""
    life = Life()
    life.start()
    for subject in (Subject.EXITED, Subject.EXITED, Subject.FAILED):
        life.tell(DeadlinePassed(), after=5.0)
        actions = life.tell(Exited(life.state.run, "signal 9 (SIGKILL)", 5.0))
        assert subjects(actions)[-1] is subject
        assert "did not answer within 5 s of its start" in life.state.why
        assert "SIGKILL" not in life.state.why
        life.tell(DeadlinePassed(), after=9.0)


# --- one that cannot be asked ---------------------------------------------------------------------


def test_kept_out_is_reported_once_and_ends_nothing(ready: Life) -> None:
    """For as long as it lasts; again after an answer, and when the reason is another."""
    reported = [subjects(ready.tell(KeptOut(1, reason))) for reason in ("a", "a", "b")]
    assert reported == [[Subject.SILENT], [], [Subject.SILENT]]
    assert (ready.phase(), ready.state.silences) == (Phase.READY, 0)
    ready.tell(Answered(1))
    assert subjects(ready.tell(KeptOut(1, "b"))) == [Subject.SILENT]


def test_kept_out_from_an_adopted_daemon() -> None:
    """It may have clients, so no deadline ends it as long as that is the reason."""
    life = Life()
    life.tell(Adopted(SPEC, 4711))
    for _ in range(4):
        life.tell(KeptOut(1, "another front-end"))
        assert life.tell(DeadlinePassed(), after=5.0) == (Schedule(5.0),)
        assert (life.phase(), life.state.why) == (Phase.STARTING, "another front-end")
    assert Kill(1) in life.tell(DeadlinePassed(), after=5.0)  # now it is silent by itself


def test_kept_out_while_limits_are_set() -> None:
    """They are set and read once more."""
    life = Life()
    life.start()
    life.tell(Answered(1))
    life.tell(KeptOut(1, "another front-end"))
    assert SetLimits(1, SPEC) in life.tell(DeadlinePassed(), after=4.0)
    life.tell(life.proof())
    assert life.phase() is Phase.READY


# --- servers and clients --------------------------------------------------------------------------


def test_ready_to_fault_to_limiting_with_the_server(ready: Life) -> None:
    """A faulted server is waited for; when it is active again, limits are proven again."""
    ready.tell(seen(ready, ServerStatus.ACTIVE))
    actions = ready.tell(seen(ready, ServerStatus.FAULT))
    assert (subjects(actions), undone(actions)) == ([Subject.SERVER_FAULT], [])
    assert ready.phase() is Phase.FAULT
    assert SetLimits(1, SPEC) in ready.tell(seen(ready, ServerStatus.ACTIVE))
    assert ready.phase() is Phase.LIMITING


def test_a_faulted_server_that_goes(ready: Life) -> None:
    """Takes its fault with it."""
    ready.tell(seen(ready, ServerStatus.FAULT))
    actions = ready.tell(ServerGone(1, 50, "status 1"))
    assert subjects(actions) == [Subject.SERVER_EXITED]
    assert ready.phase() is Phase.LIMITING


def test_a_server_that_was_never_seen(ready: Life) -> None:
    """It came and went between two looks, badly: that is reported, with the log's words."""
    actions = ready.tell(ServerGone(1, 77, "status 1", ("no device",)))
    words = "server 77 ended: status 1"
    assert actions == (Report(Subject.SERVER_EXITED, words, ("no device",)),)
    assert ready.tell(ServerGone(1, 78)) == ()
    assert ready.phase() is Phase.READY


def test_who_caused_a_fault(ready: Life) -> None:
    """Is named where the log names it."""
    server = Server(50, 1000, ServerStatus.FAULT, culprit=99)
    [report] = ready.tell(ServerSeen(1, server))
    assert isinstance(report, Report)
    assert "server 50 had a fatal fault of client 99 and takes no client" in report.message


def test_who_caused_a_fault_is_known_later(ready: Life) -> None:
    """Then it is reported as soon as it is known, once."""
    [report] = ready.tell(ServerSeen(1, Server(50, 1000, ServerStatus.FAULT)))
    assert isinstance(report, Report)
    assert "client" not in report.message.partition("and takes")[0]
    [report] = ready.tell(ServerSeen(1, Server(50, 1000, ServerStatus.FAULT, culprit=99)))
    assert isinstance(report, Report)
    assert "had a fatal fault of client 99" in report.message
    assert ready.state.why == report.message
    assert ready.tell(ServerSeen(1, Server(50, 1000, ServerStatus.FAULT, culprit=99))) == ()


def test_a_new_server_is_asked_for_its_limits(ready: Life) -> None:
    """It has the defaults of the moment it started; without leaving Ready they are read."""
    assert ready.tell(seen(ready, ServerStatus.ACTIVE)) == (ReadBack(1, SPEC, 1),)
    assert ready.tell(seen(ready, ServerStatus.ACTIVE)) == ()
    assert ready.phase() is Phase.READY
    assert ready.tell(ServerGone(1, 50)) == ()


def test_a_server_that_initializes_too_long(ready: Life) -> None:
    """Its clients wait; that is a fault until it is active."""
    assert Schedule(30.0) in ready.tell(seen(ready, ServerStatus.INITIALIZING))
    assert subjects(ready.tell(DeadlinePassed(), after=30.0)) == [Subject.SERVER_SLOW]
    assert ready.phase() is Phase.FAULT
    assert SetLimits(1, SPEC) in ready.tell(seen(ready, ServerStatus.ACTIVE))


def test_a_server_that_gets_active_in_time(ready: Life) -> None:
    """Its deadline is forgotten."""
    ready.tell(seen(ready, ServerStatus.INITIALIZING))
    ready.tell(seen(ready, ServerStatus.ACTIVE))
    assert ready.tell(DeadlinePassed(), after=100) == ()


def test_limits_read_back_beside_a_faulted_server() -> None:
    """The limits are fine, it is of no use all the same."""
    life = Life()
    life.start()
    life.tell(Answered(1))
    life.tell(seen(life, ServerStatus.FAULT))
    life.tell(life.proof())
    assert life.phase() is Phase.FAULT


def test_limits_read_back_beside_an_active_server() -> None:
    """Ready, with nothing left to wait for."""
    life = Life()
    life.start()
    life.tell(Answered(1))
    life.tell(seen(life, ServerStatus.ACTIVE))
    assert undone(life.tell(life.proof())) == []
    assert (life.phase(), life.state.deadline) == (Phase.READY, None)


def test_a_server_of_another_user(ready: Life) -> None:
    """It is reported once, with both users."""
    [report] = (
        a for a in ready.tell(seen(ready, ServerStatus.ACTIVE, uid=0)) if isinstance(a, Report)
    )
    assert report.subject is Subject.WRONG_SERVER_USER
    assert "runs as user 0, the plan wants 1000" in report.message
    assert subjects(ready.tell(seen(ready, ServerStatus.FAULT, uid=0))) == [Subject.SERVER_FAULT]


def test_a_server_whose_user_is_not_known(ready: Life) -> None:
    """No report claims that it is the wrong one."""
    actions = ready.tell(ServerSeen(1, Server(50, None, ServerStatus.ACTIVE)))
    assert Subject.WRONG_SERVER_USER not in subjects(actions)


def test_a_client_of_another_user(ready: Life) -> None:
    """Who waits, who holds the server, what to do."""
    ready.tell(seen(ready, ServerStatus.ACTIVE))
    [report] = ready.tell(ForeignUserWaiting(1, 99, 1001, "python"))
    assert isinstance(report, Report)
    assert report.message == (
        "pid 99 (python) of user 1001 waits and will not be served: server 50 of user 1000 "
        "holds the device; run it as user 1000, or change the plan's user"
    )


# --- draining -------------------------------------------------------------------------------------


def test_ready_to_draining_to_down(ready: Life) -> None:
    """No longer wanted: it waits for its clients however long, asks, and is gone."""
    assert ready.tell(NewPlan(None)) == ()
    assert ready.phase() is Phase.DRAINING
    assert ready.tell(DeadlinePassed(), after=10**6) == ()
    assert ready.tell(ClientsGone(1)) == (Quit(1, 10.0), Schedule(10.0))
    actions = ready.tell(Exited(1, "status 0", 100.0))
    assert (subjects(actions), undone(actions)) == ([Subject.DRAINED], [SweepOrphans(SPEC)])
    assert ready.state == State(run=1)


def test_a_daemon_that_does_not_quit(ready: Life) -> None:
    """Is killed when its time is over; it has no clients."""
    ready.tell(NewPlan(None))
    ready.tell(ClientsGone(1))
    assert Kill(1) in ready.tell(DeadlinePassed(), after=10.0)
    assert (ready.phase(), ready.state.ending) == (Phase.DRAINING, Ending.KILLING)


def test_another_user_needs_another_process(ready: Life) -> None:
    """Drained first, then started as the other."""
    ready.tell(NewPlan(OTHER_USER))
    ready.tell(ClientsGone(1))
    actions = ready.tell(Exited(1, "status 0", 100.0))
    assert undone(actions)[-3:] == [SweepOrphans(OTHER_USER), Spawn(2, OTHER_USER), Schedule(5.0)]
    assert ready.state.restarts == 0


def test_other_limits_need_no_other_process(ready: Life) -> None:
    """They are set while it runs, and it is Ready when they are read back."""
    assert SetLimits(1, OTHER_LIMITS) in ready.tell(NewPlan(OTHER_LIMITS))
    assert ready.phase() is Phase.LIMITING
    ready.tell(ready.proof())
    assert (ready.phase(), ready.state.running) == (Phase.READY, OTHER_LIMITS)


def test_the_same_plan_disturbs_nothing(ready: Life) -> None:
    """What fits is left alone."""
    before = ready.state
    assert ready.tell(NewPlan(SPEC)) == ()
    assert ready.state == before


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
    assert ready.phase() is Phase.DRAINING
    actions = ready.tell(DeadlinePassed(), after=30.0)
    if force:
        assert actions == (Quit(1, 10.0), Schedule(10.0))
    else:
        assert subjects(actions) == [Subject.STILL_IN_USE]
        assert ready.phase() is Phase.LIMITING


def test_drained_on_request_it_stays_down(ready: Life) -> None:
    """Until it is asked for, or a plan is new."""
    ready.tell(DrainRequested(None))
    ready.tell(ClientsGone(1))
    ready.tell(Exited(1, "status 0", 100.0))
    assert (ready.phase(), ready.state.why) == (Phase.DOWN, "drained on request")
    assert Spawn(2, SPEC) in ready.tell(RetryRequested())


def test_a_drain_that_is_given_up(ready: Life) -> None:
    """A person's is taken back; a plan's is not, nor one whose end has begun."""
    ready.tell(DrainRequested(None))
    assert SetLimits(1, SPEC) in ready.tell(DrainGivenUp())
    ready.tell(ready.proof())
    assert ready.tell(DrainGivenUp()) == ()
    ready.tell(NewPlan(None))
    assert ready.tell(DrainGivenUp()) == ()
    assert ready.phase() is Phase.DRAINING
    ready.tell(ClientsGone(1))
    assert ready.tell(DrainGivenUp()) == ()


def test_a_restart_on_request(ready: Life) -> None:
    """Drained, then started again."""
    ready.tell(DrainRequested(None, then_start=True))
    ready.tell(ClientsGone(1))
    assert Spawn(2, SPEC) in ready.tell(Exited(1, "status 0", 100.0))


# --- adoption, and what comes late ----------------------------------------------------------------


def test_down_to_starting_by_adoption() -> None:
    """An earlier agent's is not started again, but proven again; and never ended for limits."""
    life = Life()
    assert life.tell(Adopted(SPEC, 4711)) == (Schedule(5.0),)
    assert (life.phase(), life.state.wanted) == (Phase.STARTING, SPEC)
    life.tell(Answered(1))
    for _ in range(5):
        actions = life.tell(life.proof("memory 1G, wanted 4096M"))
        assert Kill(1) not in actions
        life.tell(DeadlinePassed(), after=10)
    life.tell(life.proof())
    assert life.phase() is Phase.READY


def test_only_what_is_down_is_adopted(ready: Life) -> None:
    """Never two processes."""
    assert ready.tell(Adopted(OTHER_USER, 1)) == ()
    assert ready.state.running == SPEC


def test_what_an_earlier_process_says_is_past(ready: Life) -> None:
    """It neither ends nor proves the present one."""
    ready.tell(Exited(1, "signal 9", 100.0))
    ready.tell(DeadlinePassed(), after=1.0)
    before = ready.state
    for event in (Exited(1, "signal 9", 1.0), Answered(1), Silent(1), ClientsGone(1)):
        assert ready.tell(event) == ()
    assert ready.state == before
