"""The days that are played with real processes: those of the campaign, in real time."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.campaign import days
from tests.campaign.episode import Action, Episode, FullDisk, JumpClock, Kill, Pause, Step

_MOST = 8  # steps
_SECONDS = (0.0, 0.0, 0.02, 0.1, 0.3, 0.5, 1.0)
_DOWN = 0.3  # seconds at most from a kill to the next start


def episode(seed: int) -> Episode:
    """The day with this number, ever the same."""
    day = days.episode(seed)
    rng = random.Random(f"processes {seed}")
    steps = [Step(_here(step.action, rng), rng.choice(_SECONDS)) for step in day.steps[:_MOST]]
    return replace(day, strict=True, steps=tuple(steps))


def _here(action: Action, rng: random.Random) -> Action:
    """What there is of it on a machine that is not ours alone."""
    match action:
        case JumpClock() | FullDisk():
            return Pause(rng.choice((0.1, 0.5, 2.0)))
        case Kill(changes, down):
            return Kill(changes, min(down, _DOWN))
        case _:
            return action
