import pytest

from nodeagent.mps.lifecycle.model import (
    ClientsGone,
    DaemonPhase,
    DeadlinePassed,
    DrainGivenUp,
    DrainRequested,
    Ending,
    Exited,
    ForeignUserWaiting,
    Kill,
    NewPlan,
    Quit,
    ReadBack,
    Report,
    ReportSubject,
    RetryRequested,
    Schedule,
    Server,
    ServerGone,
    ServerSeen,
    ServerStatus,
    SetLimits,
    Spawn,
    State,
    SweepOrphans,
)
from tests.mps.lifecycle.conftest import SPEC, Life, messages, subjects, undone

# --- servers and clients --------------------------------------------------------------------------


def seen(life: Life, status: ServerStatus, *, pid: int = 50, uid: int = 1000) -> ServerSeen:
    return ServerSeen(life.state.run, Server(pid, uid, status))


def test_ready_to_fault_to_limiting_with_the_server(ready: Life) -> None:
    ready.tell(seen(ready, ServerStatus.ACTIVE))
    actions = ready.tell(seen(ready, ServerStatus.FAULT))
    assert (subjects(actions), undone(actions)) == ([ReportSubject.SERVER_FAULT], [])
    assert ready.phase() is DaemonPhase.FAULT
    assert SetLimits(1, SPEC) in ready.tell(seen(ready, ServerStatus.ACTIVE))
    assert ready.phase() is DaemonPhase.LIMITING


def test_a_faulted_server_that_goes(ready: Life) -> None:
    ready.tell(seen(ready, ServerStatus.FAULT))
    actions = ready.tell(ServerGone(1, 50, "status 1"))
    assert subjects(actions) == [ReportSubject.SERVER_EXITED]
    assert ready.phase() is DaemonPhase.LIMITING


def test_a_server_that_was_never_seen(ready: Life) -> None:
    actions = ready.tell(ServerGone(1, 77, "status 1", ("no device",)))
    words = "server 77 ended: status 1"
    assert actions == (Report(ReportSubject.SERVER_EXITED, words, ("no device",)),)
    assert ready.tell(ServerGone(1, 78)) == ()
    assert ready.phase() is DaemonPhase.READY


def test_who_caused_a_fault_is_known_later(ready: Life) -> None:
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
    assert ready.tell(seen(ready, ServerStatus.ACTIVE)) == (ReadBack(1),)
    assert ready.tell(seen(ready, ServerStatus.ACTIVE)) == ()
    assert ready.phase() is DaemonPhase.READY
    assert ready.tell(seen(ready, ServerStatus.ACTIVE, pid=51)) == (ReadBack(1),)
    assert ready.tell(ServerGone(1, 51)) == ()
    assert ready.tell(seen(ready, ServerStatus.ACTIVE, pid=51)) == (ReadBack(1),)


def test_a_server_that_initializes_too_long(ready: Life) -> None:
    assert Schedule(30.0) in ready.tell(seen(ready, ServerStatus.INITIALIZING))
    assert subjects(ready.tell(DeadlinePassed(), after=30.0)) == [ReportSubject.SERVER_SLOW]
    assert ready.phase() is DaemonPhase.FAULT
    assert SetLimits(1, SPEC) in ready.tell(seen(ready, ServerStatus.ACTIVE))


def test_a_server_that_gets_active_in_time(ready: Life) -> None:
    ready.tell(seen(ready, ServerStatus.INITIALIZING))
    ready.tell(seen(ready, ServerStatus.ACTIVE))
    assert ready.tell(DeadlinePassed(), after=100) == ()


def test_a_server_of_another_user(ready: Life) -> None:
    [report] = (
        a for a in ready.tell(seen(ready, ServerStatus.ACTIVE, uid=0)) if isinstance(a, Report)
    )
    assert report.subject is ReportSubject.WRONG_SERVER_USER
    assert "runs as user 0, the plan wants 1000" in report.message
    assert subjects(ready.tell(seen(ready, ServerStatus.FAULT, uid=0))) == [
        ReportSubject.SERVER_FAULT
    ]


def test_a_server_whose_user_is_not_known(ready: Life) -> None:
    actions = ready.tell(ServerSeen(1, Server(50, None, ServerStatus.ACTIVE)))
    assert ReportSubject.WRONG_SERVER_USER not in subjects(actions)


def test_a_client_of_another_user(ready: Life) -> None:
    ready.tell(seen(ready, ServerStatus.ACTIVE))
    [report] = ready.tell(ForeignUserWaiting(1, 99, 1001, "python"))
    assert isinstance(report, Report)
    assert report.message == (
        "pid 99 (python) of user 1001 waits and will not be served: server 50 of user 1000 "
        "holds the device; run it as user 1000, or change the plan's user"
    )


# --- drains ---------------------------------------------------------------------------------------


def test_ready_to_draining_to_down(ready: Life) -> None:
    assert ready.tell(NewPlan(None)) == ()
    assert ready.phase() is DaemonPhase.DRAINING
    assert ready.tell(DeadlinePassed(), after=10**6) == ()
    assert ready.tell(ClientsGone(1)) == (Quit(1, 10.0), Schedule(10.0))
    actions = ready.tell(Exited(1, "status 0", 100.0))
    assert (subjects(actions), undone(actions)) == ([ReportSubject.DRAINED], [SweepOrphans(SPEC)])
    assert messages(actions) == ["the daemon was drained for the plan and has ended"]
    assert ready.state == State(run=1)


def test_a_daemon_that_does_not_quit(ready: Life) -> None:
    ready.tell(NewPlan(None))
    ready.tell(ClientsGone(1))
    assert ready.tell(ClientsGone(1)) == ()  # it was asked already
    actions = ready.tell(DeadlinePassed(), after=10.0)
    assert (subjects(actions), Kill(1) in actions) == ([ReportSubject.SILENT], True)
    assert (ready.phase(), ready.state.ending) == (DaemonPhase.DRAINING, Ending.KILLING)


def test_a_drain_that_the_plan_takes_back(ready: Life) -> None:
    ready.tell(NewPlan(None))
    assert SetLimits(1, SPEC) in ready.tell(NewPlan(SPEC))
    ready.tell(ready.proof())
    ready.tell(NewPlan(None))
    ready.tell(ClientsGone(1))
    ready.tell(NewPlan(SPEC))
    assert Spawn(2, SPEC) in ready.tell(Exited(1, "status 0", 100.0))


@pytest.mark.parametrize("force", [False, True])
def test_a_drain_on_request_with_a_deadline(ready: Life, force: bool) -> None:
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
    ready.tell(DrainRequested(None))
    ready.tell(ClientsGone(1))
    actions = ready.tell(Exited(1, "status 0", 100.0))
    assert messages(actions) == ["the daemon was drained on request and has ended"]
    assert (ready.phase(), ready.state.why) == (DaemonPhase.DOWN, "drained on request")
    assert Spawn(2, SPEC) in ready.tell(RetryRequested())


def test_a_drain_that_is_given_up(ready: Life) -> None:
    ready.tell(DrainRequested(None))
    assert SetLimits(1, SPEC) in ready.tell(DrainGivenUp())
    ready.tell(ready.proof())
    assert ready.tell(DrainGivenUp()) == ()
    ready.tell(NewPlan(None))
    assert ready.tell(DrainGivenUp()) == ()
    assert ready.phase() is DaemonPhase.DRAINING
    ready.tell(ClientsGone(1))
    assert ready.tell(DrainGivenUp()) == ()


def test_a_drain_that_is_given_up_before_it_ever_answered() -> None:
    life = Life()
    life.start()
    life.tell(DrainRequested(None))
    assert life.state.deadline is None
    assert life.tell(DrainGivenUp()) == (Schedule(5.0),)
    assert life.phase() is DaemonPhase.STARTING


def test_a_restart_on_request(ready: Life) -> None:
    ready.tell(DrainRequested(None, then_start=True))
    ready.tell(ClientsGone(1))
    actions = ready.tell(Exited(1, "status 0", 100.0))
    assert Spawn(2, SPEC) in actions
    assert messages(actions) == [
        "the daemon was drained on request and has ended, to be started again"
    ]
