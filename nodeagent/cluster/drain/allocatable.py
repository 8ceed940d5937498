"""What the node offers to pods after a change, compared with what it should offer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nodeagent.cluster.drain.device_plugin import GPU_RESOURCE, MIG_RESOURCE, SHARED
from nodeagent.plan.problems import Code, Problem


@dataclass(slots=True, eq=False)
class AwaitedAllocatable:
    """Compares what the node offers with what it should; requests nothing.

    For `deadline` seconds a difference is no problem; then it is one until it is gone. `changed` is
    called when the wait is over or the problems are others. `plugin` are kubectl's options for the
    device plugin's pods, one text for each of their labels.
    """

    deadline: float
    plugin: tuple[str, ...]
    changed: Callable[[str], None]
    problems: tuple[Problem, ...] = ()
    _expected: Mapping[str, int] | None = None
    _allocatable: Mapping[str, str] | None = None  # None: not known
    _timer: asyncio.TimerHandle | None = None

    @property
    def expected(self) -> Mapping[str, int] | None:
        """What is still waited for; None once it has come or the time is over."""
        return self._expected if self._timer is not None else None

    def begin(self, expected: Mapping[str, int]) -> None:
        """Wait for this; the same as is waited for already changes nothing."""
        if self.expected == expected:
            return
        self.forget()
        self._expected = expected
        self._timer = asyncio.get_running_loop().call_later(self.deadline, self._time_is_over)
        self._compare()

    def forget(self) -> None:
        """The GPUs change again, or the wait is over."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._expected, self.problems = None, None, ()

    def observe(self, allocatable: Mapping[str, str] | None) -> None:
        """The node offers this now."""
        self._allocatable = allocatable
        self._compare()

    def _time_is_over(self) -> None:
        self._timer = None
        self._compare()
        if not self.problems:  # what the node offers is not known
            self.changed("the node's offer was waited for long enough")

    def _compare(self) -> None:
        if self._expected is None or self._allocatable is None:
            return
        found = mismatches(self._expected, self._allocatable, plugin=self.plugin)
        if not found:
            self.forget()
            self.changed("the node offers what it should")
        elif self._timer is None and found != self.problems:
            self.problems = found
            self.changed("the node does not offer what it should")


def mismatches(
    wanted: Mapping[str, int], allocatable: Mapping[str, str], *, plugin: tuple[str, ...]
) -> tuple[Problem, ...]:
    """One problem for each resource of which the node offers another amount than it should.

    A resource of the plugin that should be gone and is still offered is among them. `plugin` are
    kubectl's options that select the plugin's pods on this node, together.
    """
    # By the names it gives on its own; others under nvidia.com/ are offered by others.
    own = (GPU_RESOURCE, GPU_RESOURCE + SHARED)
    left = {
        name
        for name, amount in allocatable.items()
        if amount != "0" and (name in own or name.startswith(MIG_RESOURCE))
    }
    return tuple(
        _differs(name, wanted.get(name, 0), allocatable.get(name, "0"), plugin)
        for name in sorted({*wanted, *left})
        if allocatable.get(name, "0") != str(wanted.get(name, 0))
    )


def _differs(name: str, wanted: int, there: str, plugin: tuple[str, ...]) -> Problem:
    case = "notRestarted" if wanted == 0 else "otherAmount"
    if wanted and there == "0":
        case = "nothing"
    return Problem.of(
        Code.NOT_OFFERED,
        case,
        offered=f"{there} {name}",
        wanted=wanted or "none",
        plugin=_typed("delete" if wanted == 0 else "get", plugin),
    )


def _typed(verb: str, plugin: tuple[str, ...]) -> str:
    """One line for a shell; pods with one of several labels take a command for each."""
    return f"`{'; '.join(f'kubectl {verb} pods {options}' for options in plugin)}`"
