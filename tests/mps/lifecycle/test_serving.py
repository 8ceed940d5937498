from nodeagent.mps.lifecycle import model
from nodeagent.structs import replace
from tests.mps.lifecycle.conftest import SPEC, Life, messages, subjects, undone

# --- servers and clients --------------------------------------------------------------------------


def seen(
    life: Life, status: model.ServerStatus, *, pid: int = 50, uid: int = 1000
) -> model.ServerSeen:
    return model.ServerSeen(life.state.run, model.Server(pid, uid, status))


def test_a_faulted_server_that_goes(ready: Life) -> None:
    ready.tell(seen(ready, model.ServerStatus.FAULT))
    actions = ready.tell(model.ServerGone(1, 50, "status 1"))
    assert subjects(actions) == [model.ReportSubject.SERVER_EXITED]
    assert ready.phase() is model.DaemonPhase.LIMITING


def test_a_server_that_was_never_seen(ready: Life) -> None:
    ready.tell(seen(ready, model.ServerStatus.ACTIVE))
    actions = ready.tell(model.ServerGone(1, 77, "status 1", ("no device",)))
    words = "server 77 ended: status 1"
    assert actions == (model.Report(model.ReportSubject.SERVER_EXITED, words, ("no device",)),)
    assert ready.tell(model.ServerGone(1, 78)) == ()
    assert (ready.phase(), ready.state.server is None) == (model.DaemonPhase.READY, False)


def test_who_caused_a_fault_is_known_later(ready: Life) -> None:
    [words] = messages(ready.tell(seen(ready, model.ServerStatus.FAULT)))
    assert "client" not in words.partition("and takes")[0]
    server = model.Server(50, 1000, model.ServerStatus.FAULT, culprit=99)
    [words] = messages(ready.tell(model.ServerSeen(1, server)))
    assert "had a fatal fault of client 99" in words
    assert ready.state.why == words
    unseen = replace(server, uid=None)  # its process could not be read
    assert ready.tell(model.ServerSeen(1, unseen)) == ()


def test_a_new_server_is_asked_for_its_limits(ready: Life) -> None:
    """It has the defaults of the moment it started; without leaving Ready they are read."""
    assert ready.tell(seen(ready, model.ServerStatus.ACTIVE)) == (model.ReadBack(1),)
    assert ready.tell(seen(ready, model.ServerStatus.ACTIVE)) == ()
    assert ready.phase() is model.DaemonPhase.READY
    assert ready.tell(seen(ready, model.ServerStatus.ACTIVE, pid=51)) == (model.ReadBack(1),)
    assert ready.tell(model.ServerGone(1, 51)) == ()
    assert ready.tell(seen(ready, model.ServerStatus.ACTIVE, pid=51)) == (model.ReadBack(1),)


def test_a_server_that_initializes_too_long(ready: Life) -> None:
    assert model.Schedule(30.0) in ready.tell(seen(ready, model.ServerStatus.INITIALIZING))
    [words] = messages(ready.tell(model.DeadlinePassed(), after=30.0))
    assert words == ready.state.why == "server 50 has been initializing for 30 s"
    assert ready.phase() is model.DaemonPhase.FAULT
    [words] = messages(ready.tell(seen(ready, model.ServerStatus.FAULT)))
    assert "server 50 had a fatal fault and takes no client" in words
    assert model.SetLimits(1, SPEC) in ready.tell(seen(ready, model.ServerStatus.ACTIVE))


def test_a_server_that_gets_active_in_time(ready: Life) -> None:
    ready.tell(seen(ready, model.ServerStatus.INITIALIZING))
    ready.tell(seen(ready, model.ServerStatus.ACTIVE))
    assert ready.tell(model.DeadlinePassed(), after=100) == ()


def test_a_server_of_another_user(ready: Life) -> None:
    actions = ready.tell(seen(ready, model.ServerStatus.ACTIVE, uid=0))
    assert subjects(actions) == [model.ReportSubject.WRONG_SERVER_USER]
    assert "runs as user 0, the plan wants 1000" in messages(actions)[0]
    assert subjects(ready.tell(seen(ready, model.ServerStatus.FAULT, uid=0))) == [
        model.ReportSubject.SERVER_FAULT
    ]


def test_a_server_whose_user_is_not_known(ready: Life) -> None:
    actions = ready.tell(model.ServerSeen(1, model.Server(50, None, model.ServerStatus.ACTIVE)))
    assert model.ReportSubject.WRONG_SERVER_USER not in subjects(actions)


def test_a_client_of_another_user(ready: Life) -> None:
    ready.tell(seen(ready, model.ServerStatus.ACTIVE))
    [words] = messages(ready.tell(model.ForeignUserWaiting(1, 99, 1001, "python")))
    assert words == (
        "pid 99 (python) of user 1001 waits and will not be served: server 50 of user 1000 "
        "holds the device; run it as user 1000, or change the plan's user"
    )


# --- drains ---------------------------------------------------------------------------------------


def test_ready_to_draining_to_down(ready: Life) -> None:
    assert ready.tell(model.NewPlan(None)) == ()
    assert ready.phase() is model.DaemonPhase.DRAINING
    ready.tell(model.DrainRequested(9.0))  # a person's, too, has no say in what the plan waits for
    late = subjects(ready.tell(model.DeadlinePassed(), after=9.0))
    assert late == [model.ReportSubject.STILL_IN_USE]
    assert ready.tell(model.DeadlinePassed(), after=10**6) == ()
    assert ready.tell(model.ClientsGone(1)) == (model.Quit(1, 10.0), model.Schedule(10.0))
    actions = ready.tell(model.Exited(1, "status 0", 100.0))
    assert subjects(actions) == [model.ReportSubject.DRAINED]
    assert undone(actions) == [model.SweepOrphans(SPEC)]
    assert messages(actions) == ["the daemon was drained for the plan and has ended"]
    assert ready.state == model.State(run=1)


def test_a_daemon_that_does_not_quit(ready: Life) -> None:
    ready.tell(model.NewPlan(None))
    ready.tell(model.ClientsGone(1))
    assert ready.tell(model.ClientsGone(1)) == ()  # it was asked already
    actions = ready.tell(model.DeadlinePassed(), after=10.0)
    assert (subjects(actions), model.Kill(1) in actions) == ([model.ReportSubject.SILENT], True)
    assert (ready.phase(), ready.state.ending) == (model.DaemonPhase.DRAINING, model.Ending.KILLING)


def test_a_drain_that_the_plan_takes_back(ready: Life) -> None:
    ready.tell(model.NewPlan(None))
    assert model.SetLimits(1, SPEC) in ready.tell(model.NewPlan(SPEC))
    ready.tell(ready.proof())
    ready.tell(model.NewPlan(None))
    ready.tell(model.ClientsGone(1))
    ready.tell(model.NewPlan(SPEC))
    assert model.Spawn(2, SPEC) in ready.tell(model.Exited(1, "status 0", 100.0))


def test_a_drain_that_is_given_up(ready: Life) -> None:
    ready.tell(model.DrainRequested(None))
    assert model.SetLimits(1, SPEC) in ready.tell(model.DrainGivenUp())
    ready.tell(ready.proof())
    assert ready.tell(model.DrainGivenUp()) == ()
    ready.tell(model.NewPlan(None))
    assert ready.tell(model.DrainGivenUp()) == ()
    assert ready.phase() is model.DaemonPhase.DRAINING
    ready.tell(model.ClientsGone(1))
    assert ready.tell(model.DrainGivenUp()) == ()


def test_a_drain_that_is_given_up_before_it_ever_answered(life: Life) -> None:
    life.tell(model.DrainRequested(None))
    assert life.state.deadline is None
    assert life.tell(model.DrainGivenUp()) == (model.Schedule(5.0),)
    assert (life.phase(), "withdrawn" in life.state.why) == (model.DaemonPhase.STARTING, True)


def test_a_restart_on_request(ready: Life) -> None:
    ready.tell(model.DrainRequested(9.0, force=True, then_start=True))
    assert model.Quit(1, 10.0) in ready.tell(model.DeadlinePassed(), after=9.0)
    actions = ready.tell(model.Exited(1, "status 0", 100.0))
    assert model.Spawn(2, SPEC) in actions
    assert messages(actions) == [
        "the daemon was drained on request and has ended, to be started again"
    ]
