"""Makes an episode that fails as short as it can be."""

from collections.abc import Callable

from nodeagent.structs import replace
from tests.campaign.episode import Episode, Step


def shrink(episode: Episode, fails: Callable[[Episode], bool]) -> Episode:
    """The shortest that is found by leaving steps out, in ever smaller groups, that still `fails`;
    then steps of which each takes as little time as it may.
    """
    size = max(1, len(episode.steps) // 2)
    while True:
        shorter = _without_some(episode, size, fails)
        if shorter is None and size == 1:
            return _quicker(episode, fails)
        if shorter is None:
            size = max(1, size // 2)
        else:
            episode = shorter


def _without_some(episode: Episode, size: int, fails: Callable[[Episode], bool]) -> Episode | None:
    for start in range(0, len(episode.steps), size):
        steps = (*episode.steps[:start], *episode.steps[start + size :])
        candidate = replace(episode, steps=steps)
        if steps and fails(candidate):
            return candidate
    return None


def _quicker(episode: Episode, fails: Callable[[Episode], bool]) -> Episode:
    for number, step in enumerate(episode.steps):
        for seconds in (0.0, 0.5, 10.0):
            if seconds >= step.seconds:
                break
            steps = list(episode.steps)
            steps[number] = Step(step.action, seconds)
            candidate = replace(episode, steps=tuple(steps))
            if fails(candidate):
                episode = candidate
                break
    return episode
