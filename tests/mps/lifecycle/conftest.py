"""A daemon's life driven by a test, with the specs and the patience that all tests share."""

from dataclasses import dataclass, field

import pytest

from nodeagent.mps.lifecycle import model
from nodeagent.mps.lifecycle.machine import step
from nodeagent.settings import MpsSettings
from tests.mps.plans import daemon_spec, with_account, with_limits

POLICY = MpsSettings(
    start_deadline=5.0,
    limit_deadline=4.0,
    initialize_deadline=30.0,
    quit_deadline=10.0,
    kill_deadline=2.0,
    steady=60.0,
    first_delay=1.0,
    longest_delay=8.0,
    most_failures=3,
    most_silences=2,
    most_attempts=2,
)

SPEC = daemon_spec("/run/1/pipe", "GPU-1")
OTHER_LIMITS = with_limits(SPEC, 2048, 50.0)
OTHER_USER = with_account(SPEC, uid=1001)


@dataclass
class Life:
    state: model.State = field(default_factory=model.State)
    now: float = 1000.0
    jitter: float = 0.0

    def phase(self) -> model.DaemonPhase:
        return self.state.phase

    def tell(self, event: model.Event, *, after: float = 0.0) -> tuple[model.Action, ...]:
        """What is to be done when this happens so many seconds later."""
        self.now += after
        self.state, actions = step(self.state, event, self.now, settings=POLICY, jitter=self.jitter)
        return actions

    def start(self) -> tuple[model.Action, ...]:
        actions = self.tell(model.NewPlan(SPEC))
        self.tell(model.Started(self.state.run, 4711))
        return actions

    def proof(self, *differences: str) -> model.LimitsReadBack:
        return model.LimitsReadBack(self.state.run, self.state.limits_version, differences)


def subjects(actions: tuple[model.Action, ...]) -> list[model.ReportSubject]:
    return [action.subject for action in actions if isinstance(action, model.Report)]


def messages(actions: tuple[model.Action, ...]) -> list[str]:
    return [action.message for action in actions if isinstance(action, model.Report)]


def undone(actions: tuple[model.Action, ...]) -> list[model.Action]:
    return [action for action in actions if not isinstance(action, model.Report)]


@pytest.fixture
def life() -> Life:
    """Of a daemon that was started and has not answered yet."""
    made = Life()
    made.start()
    return made


@pytest.fixture
def ready(life: Life) -> Life:
    life.tell(model.Answered(1))
    life.tell(life.proof())
    assert life.phase() is model.DaemonPhase.READY
    return life
