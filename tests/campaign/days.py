"""A random day for each seed."""

import random

from tests.campaign.episode import Episode
from tests.campaign.layouts import BOARDS, Day
from tests.campaign.scenes import SCENES, WITH_MPS, failure, no_driver

_SHARING = 0.1  # of all days are with MPS, which takes many times as long


def episode(seed: int, sharing: float = _SHARING) -> Episode:
    """The day with this number, ever the same; `sharing`: which part of all days is with MPS."""
    rng = random.Random(seed)
    boards = rng.choice(list(BOARDS))
    day = Day(rng, boards, int(boards[-1]), has_mps=rng.random() < sharing)
    scenes, weights = zip(*SCENES, *(WITH_MPS if day.has_mps else ()), strict=True)
    steps = [day.change()]
    for _ in range(rng.randint(3, 10)):
        steps += rng.choices(scenes, weights)[0](day)
    if rng.random() < 0.2:  # no other plan comes then
        steps += failure(day)
    if rng.random() < 0.1:
        steps += no_driver(day)
    return Episode(seed, boards, rng.random() < 0.5, tuple(steps))
