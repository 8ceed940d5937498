"""What nos asks of a node, read from whichever carrier it uses."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.plan.problems import Problem


@dataclass(frozen=True, slots=True)
class Asked:
    """`count` devices of `profile`, as nos spells it, on the GPU with this NVML index.

    `where` leads to the place that says so.
    """

    index: int
    profile: str
    count: int
    where: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What a carrier says. With anything `wrong` it must not be acted upon; `ignored` is what nos
    passes over without a word, and so it is here, but with one.
    """

    asked: tuple[Asked, ...] = ()
    wrong: tuple[Problem, ...] = ()
    ignored: tuple[Problem, ...] = ()
