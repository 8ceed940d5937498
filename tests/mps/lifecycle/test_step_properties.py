"""What holds over any sequence of events, probable or not.

An observer, who knows nothing of the state machine's own counting, follows events and actions.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.mps.lifecycle import model
from nodeagent.mps.shares import DaemonSpec
from tests.draws import draws
from tests.mps.lifecycle.conftest import OTHER_LIMITS, OTHER_USER, POLICY, SPEC, Life

# An event as a test draws it: `late` makes it come from an earlier process or read-back.
Draw = tuple[str, int, bool, float]
SEEN = model.ServerStatus.INITIALIZING, model.ServerStatus.ACTIVE, model.ServerStatus.ACTIVE
EVENTS: dict[
    str, Callable[[model.State, int, Draw], model.Event]
] = {  # by the state, the run, and the draw
    "started": lambda _, run, draw: model.Started(run, 100 + run, found=draw[1] == 2),
    "startFailed": lambda _, run, __: model.StartFailed(run, "reason"),
    "shortage": lambda _, run, __: model.StartFailed(run, "no room", is_shortage=True),
    "exited": lambda _, run, draw: model.Exited(run, "signal 9", draw[3]),
    "answered": lambda _, run, __: model.Answered(run),
    "silent": lambda _, run, __: model.Timeout(run),
    "kept": lambda _, run, draw: model.Unreachable(run, f"reason {draw[1]}"),
    "proof": lambda state, run, draw: model.LimitsReadBack(
        run, state.limits_version - (draw[1] == 2)
    ),
    "differ": lambda state, run, _: model.LimitsReadBack(run, state.limits_version, ("memory",)),
    "server": lambda _, run, draw: model.ServerSeen(
        run, model.Server(50 + draw[2], 1000, SEEN[draw[1]])
    ),
    "fault": lambda _, run, __: model.ServerSeen(
        run, model.Server(50, 1000, model.ServerStatus.FAULT)
    ),
    "gone": lambda _, run, __: model.ServerGone(run, 50, "status 1"),
    "foreign": lambda _, run, __: model.ForeignUserWaiting(run, 60, 1001),
    "clientsGone": lambda _, run, __: model.ClientsGone(run),
    "givenUp": lambda *_: model.DrainGivenUp(),
    "drain": lambda _, __, draw: model.DrainRequested(draw[3] or None),
    "drainForce": lambda _, __, draw: model.DrainRequested(draw[3], force=True),
    "restart": lambda _, __, draw: model.DrainRequested(draw[3], then_start=True),
    "plan": lambda *_: model.NewPlan(SPEC),
    "noPlan": lambda *_: model.NewPlan(None),
    "otherLimits": lambda *_: model.NewPlan(OTHER_LIMITS),
    "otherUser": lambda *_: model.NewPlan(OTHER_USER),
    "retry": lambda *_: model.RetryRequested(),
    "adopt": lambda *_: model.Adopted(SPEC, 4711),
    "deadline": lambda *_: model.DeadlinePassed(),
}
KINDS = [*EVENTS, *["exited", "answered", "proof", "proof", "deadline", "plan"] * 4]

DRAWS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 2),
        st.integers(0, 5).map(lambda n: n == 0),
        st.sampled_from([0.0, 0.3, 1.0, 2.0, 5.0, 100.0]),
    ),
    max_size=60,
)


def event_of(draw: Draw, state: model.State) -> model.Event:
    kind, _, late, _ = draw
    return EVENTS[kind](state, state.run - late, draw)


@dataclass
class Observer:
    alive: int | None = None  # the number of the process there is
    count: int = 0
    swept: bool = False  # since the last start
    answered: bool = False
    limits: DaemonSpec | None = None  # as set last
    reading: int = 0  # how often limits were set in this run: what counts as a read-back's version
    proven: DaemonSpec | None = None  # as read back since then
    had_clients: bool = False
    timeouts: int = 0
    unreachable: bool = False  # since its deadline began
    failures: int = 0
    shortages: int = 0  # starts in a row for which the machine lacked something
    earliest: float | None = None  # the next start that the backoff allows
    ran: list[str] = field(default_factory=list)

    def see(
        self, before: model.State, event: model.Event, actions: tuple[model.Action, ...], life: Life
    ) -> None:
        self.ran.append(type(event).__name__)
        if isinstance(event, model.ProcessEvent) and event.run == self.alive:
            self.hear(before, event, actions, life)
        if isinstance(event, model.Adopted) and life.state.run != before.run:
            self.begin(life.state.run)
            self.had_clients = True
        for action in actions:
            self.do(before, event, action, life.now)
        self.judge(before, event, actions, life)

    def begin(self, run: int) -> None:
        assert self.alive is None, "two processes at once"
        assert run == self.count + 1
        self.alive = self.count = run
        self.answered = self.had_clients = False
        self.proven = self.limits = None
        self.timeouts = self.reading = 0
        self.unreachable = False

    def hear(
        self,
        before: model.State,
        event: model.ProcessEvent,
        actions: tuple[model.Action, ...],
        life: Life,
    ) -> None:
        match event:
            case model.Started(found=found):
                self.shortages, self.had_clients = 0, self.had_clients or found
            case model.Answered():
                self.answered, self.timeouts, self.unreachable = True, 0, False
            case model.Unreachable():
                self.unreachable = True
            case model.Timeout():
                self.timeouts += 1
            case model.LimitsReadBack() if event.limits_version == self.reading:
                self.proven = None if event.differences else self.limits
            case model.StartFailed(is_shortage=True) if (
                before.phase is not model.DaemonPhase.DRAINING
            ):
                self.lack(before, actions, life)
            case model.StartFailed():
                self.end(before, actions, life, quick=True)
            case model.Exited():
                quick = not self.had_clients or event.ran_for < POLICY.steady
                self.end(before, actions, life, quick=quick)

    def end(
        self, before: model.State, actions: tuple[model.Action, ...], life: Life, *, quick: bool
    ) -> None:
        assert before.running is not None
        assert model.SweepOrphans(before.running) in actions, "an orphan is left"
        assert life.state.server is None
        self.alive = None
        if before.phase is model.DaemonPhase.DRAINING:
            starts = any(isinstance(action, model.Spawn) for action in actions)
            assert not before.drain.by_plan or starts == (before.wanted is not None)
            self.failures, self.shortages, self.earliest = 0, 0, life.now
            return
        self.failures = self.failures + 1 if quick else 0
        if not self.failures:
            self.earliest = life.now  # it was steady
            return
        delay = min(POLICY.first_delay * 2 ** (self.failures - 1), POLICY.longest_delay)
        if self.failures >= POLICY.most_failures:
            delay = POLICY.longest_delay
        self.earliest = life.now + 0.75 * delay

    def lack(self, before: model.State, actions: tuple[model.Action, ...], life: Life) -> None:
        """No failure of the daemon's, so that it is tried again soon."""
        assert before.running is not None
        assert model.SweepOrphans(before.running) in actions, "an orphan is left"
        assert life.state.why == "no room"
        assert life.state.failures == before.failures, "a shortage counts as a failure"
        self.alive, self.shortages = None, self.shortages + 1
        delay = min(POLICY.first_delay * 2 ** (self.shortages - 1), POLICY.longest_delay)
        self.earliest = life.now + min(0.75 * delay, POLICY.start_deadline)
        latest = life.now + min(delay, POLICY.start_deadline)
        assert life.state.deadline is not None
        assert self.earliest <= life.state.deadline <= latest

    def do(self, before: model.State, event: model.Event, action: model.Action, now: float) -> None:
        match action:
            case model.SweepOrphans():
                assert self.alive is None, "servers of a living daemon are ended"
                self.swept = True
            case model.Spawn():
                assert self.swept, "started without a sweep"
                self.spawn(before, event, now)
                self.begin(action.run)
                self.swept = False
            case model.SetLimits():
                assert action.run == self.alive
                assert self.answered, "limits are set before it answers"
                self.limits, self.proven = action.spec, None
                self.reading += 1
            case model.ReadBack():
                assert action.run == self.alive
            case model.Kill():
                assert action.run == self.alive
                self.kill(before, event)

    def spawn(self, before: model.State, event: model.Event, now: float) -> None:
        """A start is due, or a person or another plan asks for it now."""
        if not isinstance(event, model.NewPlan | model.RetryRequested):
            assert self.earliest is not None
            assert now >= self.earliest, "started before the backoff was over"
            return
        if isinstance(event, model.NewPlan) and before.phase is model.DaemonPhase.BACKOFF:
            assert event.spec != before.wanted, "the same plan cut the backoff short"
        self.failures = 0

    def kill(self, before: model.State, event: model.Event) -> None:
        """A daemon that may have clients is killed for two reasons alone."""
        if self.had_clients:
            hung = self.timeouts >= POLICY.most_silences
            late = isinstance(event, model.DeadlinePassed) and (
                before.ending is not model.Ending.NO or before.phase is model.DaemonPhase.STARTING
            )
            assert hung or late, "killed with its clients"
            excused = before.ending is model.Ending.NO and self.unreachable and not hung
            assert not excused, "killed although no front-end could ask it"

    def judge(
        self, before: model.State, event: model.Event, actions: tuple[model.Action, ...], life: Life
    ) -> None:
        state = life.state
        assert (state.phase in model.WITH_PROCESS) == (self.alive is not None)
        if state.phase is model.DaemonPhase.DOWN:
            self.failures = 0  # someone wanted it so: what failed before is past
        assert state.failures == self.failures
        if state.phase is not model.DaemonPhase.DOWN:
            assert bool(state.why) == (state.phase is not model.DaemonPhase.READY)
        if state.phase is model.DaemonPhase.READY:
            assert self.answered
            assert self.proven == state.running == state.wanted, "Ready without proof"
            assert not state.server or state.server.status is not model.ServerStatus.FAULT
            self.had_clients = True
        proven = before.phase is model.DaemonPhase.LIMITING and isinstance(
            event, model.LimitsReadBack
        )
        if proven and state.phase is model.DaemonPhase.FAULT and state.ending is model.Ending.NO:
            self.had_clients = True  # Ready, but for its server
        if state.phase is model.DaemonPhase.FAILED and before.phase is not model.DaemonPhase.FAILED:
            assert self.failures >= POLICY.most_failures, "Failed too early"
        if isinstance(event, model.DeadlinePassed) and state.deadline != before.deadline:
            self.unreachable = False  # another deadline has begun
        if before.phase is model.DaemonPhase.FAILED and state.phase is not model.DaemonPhase.FAILED:
            assert isinstance(
                event,
                model.NewPlan | model.RetryRequested | model.DrainRequested | model.DeadlinePassed,
            )
        self.judge_waiting(before, actions, life)

    def judge_waiting(
        self, before: model.State, actions: tuple[model.Action, ...], life: Life
    ) -> None:
        state = life.state
        slow = state.server and state.server.status is model.ServerStatus.INITIALIZING
        at_rest = {model.DaemonPhase.DOWN, model.DaemonPhase.FAULT}
        at_rest |= set() if slow else {model.DaemonPhase.READY}
        ends = state.ending is not model.Ending.NO
        if ends or state.phase is not model.DaemonPhase.DRAINING:
            waits = ends or state.phase not in at_rest
            assert waits == (state.deadline is not None), "for ever, or for nothing"
        if state.phase is not model.DaemonPhase.DRAINING:
            assert state.drain == model.Drain()
        if state.deadline is not None and state.deadline != before.deadline:
            left = state.deadline - life.now
            scheduled = [action.seconds for action in actions if isinstance(action, model.Schedule)]
            assert any(abs(seconds - left) < 1e-6 for seconds in scheduled), "nothing wakes it"


def live(draws: list[Draw]) -> tuple[Life, Observer]:
    life, observer = Life(), Observer()
    for number, draw in enumerate(draws):
        event = event_of(draw, life.state)
        before = life.state
        life.jitter = (number % 10) / 10
        actions = life.tell(event, after=draw[3])
        observer.see(before, event, actions, life)
    return life, observer


def test_no_long_walk_breaks_a_rule() -> None:
    """Ready only with proof, no start without sweep or before its time, Failed only when earned,
    no orphan, no killed clients, nothing that waits without a clock; and no event without answer.
    """
    live([PLAN, ANSWER, PROOF, ("exited", 0, False, 100.0), ("deadline", 0, False, 1.0), PROOF])
    for seed in range(1200):
        jitter = random.Random(seed)
        draws = [
            (
                jitter.choice(KINDS),
                jitter.randrange(3),
                jitter.random() < 0.1,
                jitter.choice([0.0, 0.3, 1.0, 2.0, 5.0, 100.0]),
            )
            for _ in range(80)
        ]
        try:
            live(draws)
        except AssertionError as error:
            raise AssertionError(f"walk {seed}: {error}") from error


PLAN: Draw = ("plan", 0, False, 0.0)
ANSWER: Draw = ("answered", 0, False, 0.0)
PROOF: Draw = ("proof", 0, False, 0.0)


@pytest.mark.parametrize(
    "kind", sorted(EVENTS.keys() - {"plan", "otherLimits", "otherUser", "adopt"})
)
def test_one_that_nobody_wants_stays_as_it_is(kind: str) -> None:
    life = Life()
    assert life.tell(EVENTS[kind](life.state, life.state.run, (kind, 0, False, 1.0))) == ()
    assert life.state == model.State()


@settings(max_examples=draws(300))
@given(DRAWS)
def test_from_everywhere_there_is_a_way_to_ready(draws: list[Draw]) -> None:
    life, observer = live(draws)
    for _ in range(12):
        if life.phase() is model.DaemonPhase.READY and life.state.wanted == SPEC:
            break
        for event in well(life.state):
            before = life.state
            observer.see(before, event, life.tell(event, after=0.01), life)
    assert life.phase() is model.DaemonPhase.READY
    assert life.state.running == SPEC


def well(state: model.State) -> list[model.Event]:
    if state.wanted != SPEC:
        return [model.NewPlan(SPEC)]
    match state.phase:
        case model.DaemonPhase.DOWN | model.DaemonPhase.FAILED | model.DaemonPhase.BACKOFF:
            return [model.RetryRequested()]
        case model.DaemonPhase.STARTING:
            return [model.Started(state.run, 4711), model.Answered(state.run)]
        case model.DaemonPhase.LIMITING:
            return [model.LimitsReadBack(state.run, state.limits_version)]
        case model.DaemonPhase.FAULT if state.ending is model.Ending.NO:
            return [model.ServerSeen(state.run, model.Server(99, 1000, model.ServerStatus.ACTIVE))]
        case model.DaemonPhase.DRAINING if state.ending is model.Ending.NO:
            return [model.ClientsGone(state.run)]
        case model.DaemonPhase.DRAINING | model.DaemonPhase.FAULT:
            return [model.Exited(state.run, "status 0", 100.0)]
        case model.DaemonPhase.READY:
            return []
