"""The campaign's days that are played with real processes, in real time, some in a cluster."""

import random
from collections.abc import Iterator

from nodeagent.structs import replace
from tests.campaign import days
from tests.campaign.episode import (
    Action,
    AddPod,
    BadPlan,
    Damage,
    DeletePod,
    EndFaults,
    Episode,
    Foreign,
    Ignore,
    JumpClock,
    Kill,
    Lose,
    Misbehave,
    Occupy,
    Pause,
    Plan,
    Reboot,
    Recover,
    Restart,
    SpoilApi,
    SpoilKubelet,
    Step,
    Xid,
)
from tests.campaign.layouts import Day

CDI, RECORDS = "cdi", "node.json.mps/claims"  # directories of claims

SETTLED = 12.0  # seconds of a step that ends before that, once all is as planned

_MAX_STEPS = 8
_SECONDS = (0.0, 0.0, 0.02, 0.1, 0.3, 0.5, 1.0)
_SECONDS_OF_PODS = (0.1, 0.5, 1.0, 2.0, 3.0)  # from a claim to a pod that runs it is longer
_DOWN = 0.3  # seconds at most from a kill to the next start
_MAX_PAUSE = 2.0  # seconds
_SHARING = 0.3  # of the days are with MPS
_IN_CLUSTERS = 0.7  # of days of two cards, one of which is left to claims then


def episode(seed: int) -> Episode:
    """The day with this number, ever the same."""
    day = days.episode(seed, _SHARING)
    rng = random.Random(f"processes {seed}")
    in_cluster = day.boards == "h100-80gb:2" and rng.random() < _IN_CLUSTERS
    actions = [_here(step.action, rng) for step in day.steps[:_MAX_STEPS]]
    if in_cluster:
        actions = list(_in_cluster(actions, rng))
    seconds = _SECONDS_OF_PODS if in_cluster else _SECONDS
    steps = tuple(Step(action, rng.choice(seconds)) for action in actions)
    if rng.random() < 0.4:
        steps += tuple(_interrupted(day, rng, in_cluster=in_cluster))
    if in_cluster and rng.random() < 0.5:
        steps += rng.choice((_forgotten, _rebooted))(rng)
    elif day.has_mps and not in_cluster and rng.random() < 0.8:
        steps += tuple(rng.choice((_unshared, _tampered))(int(day.boards[-1])))
    return replace(day, strict=True, steps=steps)


def _forgotten(rng: random.Random) -> tuple[Step, ...]:
    """What comes after an API server that knows no earlier version of anything."""
    plan = Plan(({"1g.10gb": rng.randint(1, 6)},))
    return (Step(SpoilApi("restart"), 1.0), Step(plan, 1.0))


def _rebooted(rng: random.Random) -> tuple[Step, ...]:
    """The node is started again under pods that have what they claimed."""
    pod = Step(AddPod(rng.randrange(4)), 3.0)
    return (Step(EndFaults(), 0.0), pod, Step(Reboot(), 3.0))


def _interrupted(day: Episode, rng: random.Random, *, in_cluster: bool) -> Iterator[Step]:
    """The agent gets a signal in the middle of a change."""
    drawn = Day(rng, day.boards, int(day.boards[-1]), has_mps=False)
    yield Step(EndFaults(), 0.0)
    for seconds in (SETTLED, rng.choice((0.1, 0.3, 0.5, 0.7))):
        plan = drawn.change().action
        assert isinstance(plan, Plan)
        yield Step(Plan(plan.layouts[:1]) if in_cluster else plan, seconds)
    yield Step(rng.choice((Restart(), Restart(), Kill(0, _DOWN), Pause(_MAX_PAUSE))), 1.0)


def _tampered(gpus: int) -> Iterator[Step]:
    """Daemons of which all is well lose their limits, and nothing else happens."""
    yield Step(EndFaults(), 0.0)
    yield Step(Plan(({},) * gpus, tuple(range(gpus))), SETTLED)
    yield from (Step(Misbehave("forget_limits", gpu), 0.5) for gpu in range(gpus))


def _unshared(gpus: int) -> Iterator[Step]:
    """Programs find devices under MPS, and are still there when these are not to be shared."""
    yield Step(EndFaults(), 0.0)
    yield Step(Plan(({},) * gpus, tuple(range(gpus))), SETTLED)
    for device in range(gpus):
        yield Step(Occupy(device), 0.1)
    yield Step(Plan(({},) * gpus), 3.0)


def _here(action: Action, rng: random.Random) -> Action:
    """What there is of it on a machine that is not ours alone."""
    match action:
        case Ignore():
            return Pause(rng.choice((0.1, 0.5, _MAX_PAUSE)))
        case Pause(seconds):
            return Pause(min(seconds, _MAX_PAUSE))
        case Kill(changes, down):
            return Kill(changes, min(down, _DOWN))
        case _:
            return action


def _in_cluster(actions: list[Action], rng: random.Random) -> Iterator[Action]:
    """The same with pods that have what they claimed on the second card, so that nothing happens to
    that behind the agent's back.
    """
    for action in actions:
        match action:
            case Plan(layouts):
                yield Plan(layouts[:1])
                yield AddPod(rng.randrange(4))
            case BadPlan(text):
                yield BadPlan(text)
            case Foreign() | Lose() | Recover() | Xid():
                yield _change_of_pods(rng)
            case JumpClock() | Reboot():
                yield action
            case _:
                yield action if rng.random() < 0.4 else _of_cluster(rng)


def _change_of_pods(rng: random.Random) -> Action:
    return rng.choice((AddPod(rng.randrange(4)), DeletePod(rng.randrange(4))))


def _of_cluster(rng: random.Random) -> Action:
    answers = ("409", "410", "429", "500", "garbage", "reset", "freeze")
    how = rng.choice((*answers, "cut", "restart", "expire"))
    kubelet = SpoilKubelet(rng.choice(("gone", "restart", "hold")))
    if rng.random() < 0.2:
        return _damage_of_claims(rng)
    return rng.choice((SpoilApi(how, rng.choice((1, 3, 10))), kubelet, _change_of_pods(rng)))


def _damage_of_claims(rng: random.Random) -> Action:
    how = rng.choice(("delete", "cut", "flip", "newer", "deleteAll"))
    return Damage(rng.choice((CDI, CDI, RECORDS)), how, rng.randrange(8))
