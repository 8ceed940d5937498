"""Random days of the agent, on which nothing may be harmed and nothing claimed that is not so.

They are played in a process of their own (`python -m tests.campaign`), whose clock is the
machine's.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from itertools import chain
from typing import get_args

import pytest
from msgspec.structs import astuple

from tests.campaign import episode as module
from tests.campaign import faults
from tests.campaign.days import episode
from tests.campaign.outcomes import seeds
from tests.campaign.real.days import episode as real_episode
from tests.campaign.shrink import shrink

# Played in every run: those that show most of the faults put into the program, and those that have
# what does not happen on these.
_DAYS = ["1-60", *map(str, (68, 72, 78, 93, 97, 99, 107, 110, 121, 126, 140, 141, 144))]
_DAYS += map(str, (150, 157, 161, 165, 181, 183, 184, 188, 194))
_OF_KINDS = {"Damage", "FullDisk", "Ignore", "Kill", "Lose", "Misbehave", "Occupy", "Signal"}


def _said(*arguments: str) -> str:
    """What the module prints, which has to end well."""
    played = subprocess.run(
        [sys.executable, "-m", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert played.returncode == 0, played.stdout
    return played.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["tests.campaign", *_DAYS], marks=pytest.mark.timeout(600)),
        pytest.param(["tests.campaign", "--kept"], marks=pytest.mark.full),
        pytest.param(
            ["tests.campaign", "61-400"], marks=[pytest.mark.full, pytest.mark.timeout(900)]
        ),
        pytest.param(["tests.campaign.real", "10", "12", "29"], marks=pytest.mark.full),
    ],
)
def test_random_days(arguments: list[str]) -> None:
    assert re.search(r"(?m)^violations +0$", _said(*arguments))


@pytest.mark.full
@pytest.mark.timeout(900)
def test_an_hour_leaves_nothing_behind() -> None:
    _said("tests.campaign.soak", "1")


def test_the_faults_are_still_faults() -> None:
    for edit in chain(*faults.FAULTS.values(), *faults.REAL_FAULTS.values()):
        text = (faults.ROOT / "nodeagent" / edit.file).read_text()
        compile(edit.applied_to(text), edit.file, "exec")


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_faults_are_found() -> None:
    _said("tests.campaign", "--faults", "1-200")
    assert len(faults.FAULTS) >= 10


def test_a_seed_is_a_day() -> None:
    players = (episode, real_episode)
    made = [draw(seed) for draw in players for seed in range(200)]
    assert made == [draw(seed) for draw in players for seed in range(200)]
    for day in made:
        assert eval(str(day), vars(module)) == day
    kinds = {type(step.action).__name__ for day in made for step in day.steps}
    assert kinds == {kind.__name__ for kind in get_args(module.Action)}


def test_what_happens_on_any_day_happens_in_every_run() -> None:
    def kind(action: module.Action) -> tuple[object, ...]:
        parts = astuple(action) if type(action).__name__ in _OF_KINDS else ()
        return (type(action), *(part for part in parts if isinstance(part, str)))

    def kinds(days: Iterable[int]) -> set[tuple[object, ...]]:
        return {kind(step.action) for seed in days for step in episode(seed).steps}

    assert kinds(seeds(_DAYS)) == kinds(range(1, 1000))


def test_a_day_is_shortened() -> None:
    day = max(map(episode, range(50)), key=lambda day: len(day.steps))
    actions = [step.action for step in day.steps]
    some = [action for action in actions if actions.count(action) == 1][::3]
    assert len(some) > 1

    def fails(shorter: module.Episode) -> bool:
        return [step.action for step in shorter.steps if step.action in some] == some

    found = shrink(day, fails)
    assert [step.action for step in found.steps] == some
    assert all(step.seconds == 0.0 for step in found.steps)
