"""The campaign's days that are played with real processes, in real time, some in a cluster."""

import random
from collections.abc import Iterator

from nodeagent.structs import replace
from tests.campaign import days
from tests.campaign import episode as act
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


def episode(seed: int) -> act.Episode:
    """The day with this number, ever the same."""
    day = days.episode(seed, _SHARING)
    rng = random.Random(f"processes {seed}")
    in_cluster = day.boards == "h100-80gb:2" and rng.random() < _IN_CLUSTERS
    actions = [_here(step.action, rng) for step in day.steps[:_MAX_STEPS]]
    if in_cluster:
        actions = list(_in_cluster(actions, rng))
    seconds = _SECONDS_OF_PODS if in_cluster else _SECONDS
    steps = tuple(act.Step(action, rng.choice(seconds)) for action in actions)
    if rng.random() < 0.4:
        steps += tuple(_interrupted(day, rng, in_cluster=in_cluster))
    if in_cluster and rng.random() < 0.5:
        steps += rng.choice((_forgotten, _rebooted))(rng)
    elif day.has_mps and not in_cluster and rng.random() < 0.8:
        steps += tuple(rng.choice((_unshared, _tampered))(int(day.boards[-1])))
    return replace(day, strict=True, steps=steps)


def _forgotten(rng: random.Random) -> tuple[act.Step, ...]:
    """What comes after an API server that knows no earlier version of anything."""
    plan = act.Plan(({"1g.10gb": rng.randint(1, 6)},))
    return (act.Step(act.SpoilApi("restart"), 1.0), act.Step(plan, 1.0))


def _rebooted(rng: random.Random) -> tuple[act.Step, ...]:
    """The node is started again under pods that have what they claimed."""
    pod = act.Step(act.AddPod(rng.randrange(4)), 3.0)
    return (act.Step(act.EndFaults(), 0.0), pod, act.Step(act.Reboot(), 3.0))


def _interrupted(day: act.Episode, rng: random.Random, *, in_cluster: bool) -> Iterator[act.Step]:
    """The agent gets a signal in the middle of a change."""
    drawn = Day(rng, day.boards, int(day.boards[-1]), has_mps=False)
    yield act.Step(act.EndFaults(), 0.0)
    for seconds in (SETTLED, rng.choice((0.1, 0.3, 0.5, 0.7))):
        plan = drawn.change().action
        assert isinstance(plan, act.Plan)
        yield act.Step(act.Plan(plan.layouts[:1]) if in_cluster else plan, seconds)
    yield act.Step(
        rng.choice((act.Restart(), act.Restart(), act.Kill(0, _DOWN), act.Pause(_MAX_PAUSE))), 1.0
    )


def _tampered(gpus: int) -> Iterator[act.Step]:
    """Daemons of which all is well lose their limits, and nothing else happens."""
    yield act.Step(act.EndFaults(), 0.0)
    yield act.Step(act.Plan(({},) * gpus, tuple(range(gpus))), SETTLED)
    yield from (act.Step(act.Misbehave("forget_limits", gpu), 0.5) for gpu in range(gpus))


def _unshared(gpus: int) -> Iterator[act.Step]:
    """Programs find devices under MPS, and are still there when these are not to be shared."""
    yield act.Step(act.EndFaults(), 0.0)
    yield act.Step(act.Plan(({},) * gpus, tuple(range(gpus))), SETTLED)
    for device in range(gpus):
        yield act.Step(act.Occupy(device), 0.1)
    yield act.Step(act.Plan(({},) * gpus), 3.0)


def _here(action: act.Action, rng: random.Random) -> act.Action:
    """What there is of it on a machine that is not ours alone."""
    match action:
        case act.Ignore():
            return act.Pause(rng.choice((0.1, 0.5, _MAX_PAUSE)))
        case act.Pause(seconds):
            return act.Pause(min(seconds, _MAX_PAUSE))
        case act.Kill(changes, down):
            return act.Kill(changes, min(down, _DOWN))
        case _:
            return action


def _in_cluster(actions: list[act.Action], rng: random.Random) -> Iterator[act.Action]:
    """The same with pods that have what they claimed on the second card, so that nothing happens to
    that behind the agent's back.
    """
    for action in actions:
        match action:
            case act.Plan(layouts):
                yield act.Plan(layouts[:1])
                yield act.AddPod(rng.randrange(4))
            case act.BadPlan(text):
                yield act.BadPlan(text)
            case act.Foreign() | act.Lose() | act.Recover() | act.Xid():
                yield _change_of_pods(rng)
            case act.JumpClock() | act.Reboot():
                yield action
            case _:
                yield action if rng.random() < 0.4 else _of_cluster(rng)


def _change_of_pods(rng: random.Random) -> act.Action:
    return rng.choice((act.AddPod(rng.randrange(4)), act.DeletePod(rng.randrange(4))))


def _of_cluster(rng: random.Random) -> act.Action:
    answers = ("409", "410", "429", "500", "garbage", "reset", "freeze")
    how = rng.choice((*answers, "cut", "restart", "expire"))
    kubelet = act.SpoilKubelet(rng.choice(("gone", "restart", "hold")))
    if rng.random() < 0.2:
        return _damage_of_claims(rng)
    return rng.choice((act.SpoilApi(how, rng.choice((1, 3, 10))), kubelet, _change_of_pods(rng)))


def _damage_of_claims(rng: random.Random) -> act.Action:
    how = rng.choice(("delete", "cut", "flip", "newer", "deleteAll"))
    return act.Damage(rng.choice((CDI, CDI, RECORDS)), how, rng.randrange(8))
