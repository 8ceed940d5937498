"""States, events and actions of an MPS daemon, all of them values.

Pure. `nodeagent.mps.lifecycle.machine` says what follows from what.
"""

from enum import StrEnum

from nodeagent.mps.shares import DaemonSpec
from nodeagent.structs import Struct, field


class DaemonPhase(StrEnum):
    """Where a daemon is in its life; the words are what users see."""

    DOWN = "Down"  # no process, and none is to be started
    STARTING = "Starting"  # started, or found running; has not answered yet
    LIMITING = "Limiting"  # answers; its limits are not proven to be in force
    READY = "Ready"  # answers, and every limit was read back
    DRAINING = "Draining"  # to end when its clients are gone
    FAULT = "Fault"  # there, but of no use: its server is faulted, or it hangs and is ended
    BACKOFF = "Backoff"  # ended by itself; is started again later
    FAILED = "Failed"  # ended too often; is tried again at the longest delay


WITH_PROCESS = frozenset(
    {
        DaemonPhase.STARTING,
        DaemonPhase.LIMITING,
        DaemonPhase.READY,
        DaemonPhase.DRAINING,
        DaemonPhase.FAULT,
    }
)


class Ending(StrEnum):
    """How far the end of the process has come."""

    NO = "no"
    QUITTING = "quitting"  # it was asked to end
    KILLING = "killing"  # it is being killed


class ServerStatus(StrEnum):
    """What the daemon says of its server."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"


class Drain(Struct, frozen=True):
    """Why and how a daemon drains.

    `force`: at the deadline it ends, clients or not; else the drain is given up then. `then_start`:
    the wanted daemon is started afterwards. `by_plan`: a plan wants the drain, without a deadline.
    """

    force: bool = False
    then_start: bool = False
    by_plan: bool = False


class Server(Struct, frozen=True):
    """The server of a daemon; `uid` None: not known. `culprit` is the client that its log names as
    the cause of a fault.
    """

    pid: int
    uid: int | None
    status: ServerStatus
    culprit: int | None = None


class State(Struct, frozen=True):
    """One daemon at one moment. Times are the event loop's.

    `run` counts processes, so that late events of an earlier one are recognised.
    `running` is what the process was started as, `wanted` what the plan wants. `deadline`: when
    what the phase waits for has to have happened.
    """

    phase: DaemonPhase = DaemonPhase.DOWN
    wanted: DaemonSpec | None = None
    running: DaemonSpec | None = None
    run: int = 0
    pid: int | None = None
    restarts: int = 0  # that nobody asked for
    failures: int = 0  # quick ones in a row
    shortages: int = 0  # starts in a row for which the machine lacked something
    timeouts: int = 0  # in a row
    unreachable: str = ""  # why it cannot be asked, as reported last; "" once it has answered
    was_unreachable: bool = False  # since its deadline was set; so its silence proves nothing
    attempts: int = 0  # at setting the limits, in a row
    limits_version: int = 0  # grows when limits are set, so that a late read-back is recognised
    answered: bool = False  # anything, ever in this run
    was_ready: bool = False  # in this run, be it under an earlier agent
    ending: Ending = Ending.NO
    drain: Drain = field(default_factory=Drain)
    server: Server | None = None
    deadline: float | None = None
    why: str = ""  # why it is not Ready, for people

    @property
    def spec(self) -> DaemonSpec:
        """What the process runs as; asked only where there is one."""
        if self.running is None:
            raise ValueError(f"there is no process in {self.phase}")
        return self.running


# --- events ---------------------------------------------------------------------------------------


class ProcessEvent(Struct, frozen=True):
    """An event from the process number `run`."""

    run: int


class Started(ProcessEvent, frozen=True):
    """The process exists. `found`: it did before, unknown to this agent, so it may have clients."""

    pid: int
    found: bool = False


class StartFailed(ProcessEvent, frozen=True):
    """There is no process: the program could not be run, or an orphan could not be ended.
    `is_shortage`: the machine lacked what a start takes, such as room on a disk.
    """

    reason: str
    is_shortage: bool = False


class Exited(ProcessEvent, frozen=True):
    """The process ended: `status` in words, `ran_for` in seconds, its log's last lines."""

    status: str
    ran_for: float
    last_lines: tuple[str, ...] = ()


class Answered(ProcessEvent, frozen=True):
    """It answered a question."""


class Timeout(ProcessEvent, frozen=True):
    """It did not answer a question within the deadline, or cannot be found although its process
    lives (for a busy one see `Unreachable`). `reason` in words, where there is more to say.
    """

    reason: str = ""


class Unreachable(ProcessEvent, frozen=True):
    """It could not be asked, which says nothing of it: another front-end has its only connection,
    or the front-end program itself failed.
    """

    reason: str


class ImpostorFound(ProcessEvent, frozen=True):
    """Another process listens where the daemon should. `reason` in words, with that process."""

    reason: str


class LimitsReadBack(ProcessEvent, frozen=True):
    """Which limits in force, or compute mode, are not as wanted, after this version was set."""

    limits_version: int
    differences: tuple[str, ...] = ()


class ServerSeen(ProcessEvent, frozen=True):
    """The daemon has this server."""

    server: Server


class ServerGone(ProcessEvent, frozen=True):
    """A server ended; `status` in words when it did so badly, its log's last lines. It may have
    come and gone without being seen.
    """

    pid: int
    status: str = ""
    last_lines: tuple[str, ...] = ()


class ForeignUserWaiting(ProcessEvent, frozen=True):
    """A client of another user than the server's waits, and would wait for ever."""

    pid: int
    uid: int
    command: str = ""


class ClientsGone(ProcessEvent, frozen=True):
    """No client is left."""


class DrainRequested(Struct, frozen=True):
    """Someone wants it drained, within `seconds` (None: however long it takes)."""

    seconds: float | None
    force: bool = False
    then_start: bool = False


class DrainGivenUp(Struct, frozen=True):
    """The request to drain it was withdrawn."""


class NewPlan(Struct, frozen=True):
    """There is a new plan, which wants this (None: no daemon)."""

    spec: DaemonSpec | None


class RetryRequested(Struct, frozen=True):
    """Someone wants it tried again now."""


class Adopted(Struct, frozen=True):
    """An earlier agent's daemon was found running as `spec`; its identity was checked."""

    spec: DaemonSpec
    pid: int


class DeadlinePassed(Struct, frozen=True):
    """The time that was asked for with `Schedule` has come."""


AnswerEvent = LimitsReadBack | ServerSeen | ServerGone | ForeignUserWaiting | ClientsGone
RunEvent = (
    Started | StartFailed | Exited | Answered | Timeout | Unreachable | ImpostorFound | AnswerEvent
)
Event = (
    RunEvent | NewPlan | DrainRequested | DrainGivenUp | RetryRequested | Adopted | DeadlinePassed
)


# --- actions, to be done in order -----------------------------------------------------------------


class SweepOrphans(Struct, frozen=True):
    """End every server that a dead daemon of this spec left behind."""

    spec: DaemonSpec


class Spawn(Struct, frozen=True):
    """Start process number `run`; not when the sweep before it failed."""

    run: int
    spec: DaemonSpec


class SetLimits(Struct, frozen=True):
    """Put the limits into force, the daemon's defaults and those of its servers, and read back."""

    run: int
    spec: DaemonSpec


class ReadBack(Struct, frozen=True):
    """Read what is in force and compare it with what is wanted now."""

    run: int


class Quit(Struct, frozen=True):
    """Ask the daemon to end, and its server with it, within `seconds`."""

    run: int
    seconds: float


class Kill(Struct, frozen=True):
    """Kill the process."""

    run: int


class Schedule(Struct, frozen=True):
    """Send `DeadlinePassed` after so many seconds, in place of any asked for earlier."""

    seconds: float


class ReportSubject(StrEnum):
    """What a report is about."""

    STARTED = "Started"
    READY = "Ready"
    EXITED = "Exited"
    START_FAILED = "StartFailed"
    SILENT = "Silent"
    REPLACED = "Replaced"
    LIMITS_DIFFER = "LimitsDiffer"
    SERVER_FAULT = "ServerFault"
    SERVER_SLOW = "ServerSlow"
    SERVER_EXITED = "ServerExited"
    WRONG_SERVER_USER = "WrongServerUser"
    FOREIGN_USER_WAITING = "ForeignUserWaiting"
    DRAINED = "Drained"
    STILL_IN_USE = "StillInUse"
    CANNOT_BE_ENDED = "CannotBeEnded"
    FAILED = "Failed"
    RECORD_UNUSABLE = "RecordUnusable"


class Report(Struct, frozen=True):
    """Something a person may want to know."""

    subject: ReportSubject
    message: str
    lines: tuple[str, ...] = ()  # the log's last


Action = SweepOrphans | Spawn | SetLimits | ReadBack | Quit | Kill | Schedule | Report
