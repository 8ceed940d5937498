"""The node as it is remembered and shared: what it holds, who may change it, and when.

Every look at it first takes over what other processes wrote to the state file; every change is
written at once, under the file's lock.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

from nodeagent.errors import UsageError
from nodeagent.simulation.boards import Overrides, load_board
from nodeagent.simulation.card import Card
from nodeagent.simulation.codes import Refused
from nodeagent.simulation.faults import Fault
from nodeagent.simulation.journal import Journal
from nodeagent.simulation.processes import ended
from nodeagent.simulation.state import ONLY_PARENT, CardState, Event, list_of
from nodeagent.simulation.state_file import StateFile
from nodeagent.simulation.switches import Switches

_EVENTS_KEPT = 256
_OTHERS_LOOKED_AT_EVERY = 0.05  # seconds, while a call waits for something
_PROCESSES_LOOKED_AT_EVERY = 0.002  # seconds: a look into /proc costs more than most calls


class StoredNode:
    """Cards, faults and events of one node. Safe for several threads."""

    def __init__(
        self,
        boards: Collection[str],
        *,
        state: Path | None = None,
        switches: Switches | None = None,
        overrides: Overrides | None = None,
        mirrored: Collection[int] = (),
    ) -> None:
        self.switches = switches or Switches()
        self.overrides: Overrides = {}
        self.journal = Journal()
        self.cards: tuple[Card, ...] = ()
        self.faults: list[Fault] = []
        self.events: list[Event] = []
        self.closed = False
        self.clock: Callable[[], float] = _uptime
        """Seconds by which loads are counted; a test may put its own here."""
        self.following = False  # whether a real process is on a device
        self.epoch = 0  # grows when the driver was loaded anew: all handles are stale then
        self.driver_failure = 0  # the code every call answers while the driver is not there
        self.changing = threading.Condition(threading.RLock())
        self._serial = 0
        self._dirty = False
        self._held = False  # by a thread that changes the node
        self._written_gpus: dict[int, str] = {}  # their part of the file, while it is true
        self._reaped = 0.0
        self._file = None if state is None else StateFile(state)
        try:
            with self.changes():
                self._start(list(boards), mirrored, switches, overrides)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the state file and of every call that still hangs."""
        with self.changing:
            self.closed = True
            if self._file is not None:
                self._file.close()
            self.changing.notify_all()

    # --- for cards and the library ----------------------------------------------------------

    @property
    def shared(self) -> bool:
        """Whether other processes may change the node too."""
        return self._file is not None

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def changed(self, gpu: int | None = None) -> None:
        """Note that there is something to write, of one GPU or of any."""
        self._dirty = True
        if gpu is None:
            self._written_gpus.clear()
        else:
            self._written_gpus.pop(gpu, None)

    def emit(
        self,
        gpu: int,
        kind: int,
        data: int = 0,
        instance: int = ONLY_PARENT,
        compute: int = ONLY_PARENT,
    ) -> None:
        """Report an event to every event set that asked for it."""
        last = self.events[-1].number if self.events else 0
        self.events.append(Event(last + 1, gpu, kind, data, instance, compute))
        del self.events[:-_EVENTS_KEPT]
        self.changed(gpu)

    @contextmanager
    def looks(self) -> Iterator[None]:
        """Hold the node still, as it is now, to look at it."""
        with self.changing:
            self.catch_up()
            yield

    @contextmanager
    def changes(self) -> Iterator[None]:
        """Hold the node still to change it; what was changed is written, errors or not."""
        with self.changing:
            if self._held:  # the outermost one writes
                yield
                return
            self._held = True
            try:
                with nullcontext() if self._file is None or self.closed else self._file.locked():
                    self.catch_up()
                    try:
                        yield
                    finally:
                        self._settle()
            finally:
                self._held = False

    def wait(self, seconds: float | None) -> None:
        """Wait, with the lock held, until something changed or the time is over."""
        if self._file is not None:
            often = _OTHERS_LOOKED_AT_EVERY
            seconds = often if seconds is None else min(seconds, often)
        self.changing.wait(seconds)
        self.catch_up()

    def catch_up(self) -> None:
        """Take over what other processes wrote, and let processes that ended go."""
        if self._file is not None and not self.closed and self._file.stale():
            content = self._file.read()
            if content is not None:
                self._take_over(content, self._file)
        self._reap()

    def session_opened(self) -> None:
        """This process initialised NVML."""
        if self._file is not None:
            self._file.open_session()

    def session_closed(self) -> None:
        """This process shut NVML down; the last one to do so may cost cards their mode."""
        if self._file is not None and not self._file.close_session():
            return
        if all(card.state.persistence for card in self.cards):
            return
        with self.changes():
            for card in self.cards:
                card.last_client_left()

    def nvml_is_open_elsewhere(self) -> bool:
        """Whether another process has NVML initialised on this node."""
        return self._file is not None and self._file.others_open()

    # --- the state --------------------------------------------------------------------------

    def _start(
        self,
        boards: list[str],
        mirrored: Collection[int],
        switches: Switches | None,
        overrides: Overrides | None,
    ) -> None:
        """Become what the state file holds, or a new node."""
        if not self.cards:  # no file, or catch_up would have read it
            self._begin(boards, mirrored, overrides or {})
            return
        found = [card.board.board for card in self.cards]
        if boards and boards != found:
            raise UsageError(
                f"the state file holds a node with {_counted(found)} and not {_counted(boards)}",
                remedy="leave the boards out, or name another file",
            )
        if switches is not None and switches != self.switches:
            self.switches = switches
            self.changed()
        if overrides is not None and overrides != self.overrides:
            self.overrides = overrides
            self.cards = self._make_cards([card.state for card in self.cards], overrides)
            self.changed()

    def _begin(self, boards: list[str], mirrored: Collection[int], overrides: Overrides) -> None:
        if not boards:
            raise UsageError(
                "there is no simulated node yet, so its boards must be named",
                remedy="for example h100-80gb:8",
            )
        states = [
            CardState(name, index in mirrored, persistence=self.switches.persistence_mode)
            for index, name in enumerate(boards)
        ]
        self.overrides = overrides
        self.cards = self._make_cards(states, overrides)
        self.changed()

    def _make_cards(self, states: list[CardState], overrides: Overrides) -> tuple[Card, ...]:
        return tuple(
            Card(index, load_board(state.board, overrides), state, self)
            for index, state in enumerate(states)
        )

    def reload(self) -> None:
        """What a start of the driver leaves of every card."""
        for card in self.cards:
            card.reboot(persistence=self.switches.persistence_mode)
        self.changed()

    def _settle(self) -> None:
        """Write what changed, and wake those who wait."""
        if not self._dirty:
            return
        self._dirty = False
        if self._file is not None and not self.closed:
            self._file.write(self._encode())
        self.changing.notify_all()

    def _encode(self) -> dict[str, str]:
        """The state as JSON, in parts: what has not changed is not encoded again."""
        for card in self.cards:
            if card.index not in self._written_gpus:
                self._written_gpus[card.index] = _json(card.state.to_json())
        return {
            "serial": str(self._serial),
            "epoch": str(self.epoch),
            "driver_failure": str(self.driver_failure),
            "switches": _json(self.switches.to_json()),
            "overrides": _json(self.overrides),
            "gpus": f"[{','.join(self._written_gpus[card.index] for card in self.cards)}]",
            "faults": _json([fault.to_json() for fault in self.faults]),
            "events": f"[{','.join(str(event.to_json()) for event in self.events)}]",
        }

    def _take_over(self, content: dict[str, Any], file: StateFile) -> None:
        try:
            states = [CardState.from_json(stored) for stored in list_of(content, "gpus", least=1)]
            faults = [Fault.from_json(stored) for stored in list_of(content, "faults")]
            events = [Event.from_json(stored) for stored in content["events"]]
            switches = Switches.from_json(content["switches"])
            serial, epoch = int(content["serial"]), int(content["epoch"])
            failure = int(content["driver_failure"])
            overrides = content["overrides"]
            same_boards = [c.board.board for c in self.cards] == [s.board for s in states]
            if same_boards and overrides == self.overrides:
                cards = self.cards
            else:
                cards = self._make_cards(states, overrides)
            for card, state in zip(cards, states, strict=True):
                card.take_over(state)
        except (KeyError, TypeError, ValueError, AttributeError, UsageError, Refused) as error:
            raise file.broken(f"{type(error).__name__}: {error}") from error
        self.cards = cards
        self.following = self._has_followed()
        self._written_gpus.clear()
        self.faults, self.events, self.switches = faults, events, switches
        self._serial, self.epoch, self.driver_failure = serial, epoch, failure
        self.overrides = overrides
        self.changing.notify_all()

    def _reap(self) -> None:
        """Real processes that ended free their devices."""
        if not self.following:
            return
        now = time.monotonic()
        if now - self._reaped < _PROCESSES_LOOKED_AT_EVERY:
            return
        self._reaped = now
        for card in self.cards:
            gone = [p for p in card.state.processes if ended(p.pid, p.started)]
            for process in gone:
                card.state.processes.remove(process)
                self.changed(card.index)
        self.following = self._has_followed()

    def _has_followed(self) -> bool:
        return any(p.started is not None for c in self.cards for p in c.state.processes)


def _uptime() -> float:
    """The same for all processes of the machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_json = json.JSONEncoder(separators=(",", ":")).encode


def _counted(names: list[str]) -> str:
    """`h100-80gb:8` again."""
    parts: list[list[Any]] = []
    for name in names:
        if parts and parts[-1][0] == name:
            parts[-1][1] += 1
        else:
            parts.append([name, 1])
    return ",".join(f"{name}:{count}" for name, count in parts)
