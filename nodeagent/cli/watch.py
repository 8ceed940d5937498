"""`nodeagent status --watch` on a terminal: the whole of it, with keys."""

import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from nodeagent.cli.output import Output
from nodeagent.errors import NodeagentError
from nodeagent.terminal.events_page import events_page
from nodeagent.terminal.gpu_page import gpu_page
from nodeagent.terminal.page import BLANK, Json, Line, Span, Tone, at_most, dim, line, painted
from nodeagent.terminal.page import wrapped as in_rows
from nodeagent.terminal.status_page import status_page

INTERVAL = 1.0  # seconds between two requests
_TICK = 0.25  # seconds between two looks at the terminal's size
_TAKE, _GIVE_BACK = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"  # the screen, and the cursor
_CLEAR = "\x1b[H\x1b[J"
_KEY = re.compile(rb"\x1b[\[O][\d;]*[A-Z~]|.", re.DOTALL)
_ARROWS = {b"\x1b[A": -1, b"\x1bOA": -1, b"k": -1, b"\x1b[B": 1, b"\x1bOB": 1, b"j": 1}
_ORDERS: Sequence[tuple[str, Callable[[Json], float]]] = (  # of the GPUs, the highest first
    ("index", lambda gpu: -int(gpu["index"])),
    ("utilization", lambda gpu: gpu.get("utilization", -1)),
    ("memory", lambda gpu: (gpu.get("memory") or {}).get("used", -1)),
    ("temperature", lambda gpu: gpu.get("temperature", -1)),
)

Ask = Callable[[str | None], Json]  # the status, of one GPU alone if it is named
Lately = Callable[[Json, str | None], Sequence[Json]]  # the events of the last hour beside it


def answers(ask: Callable[[], Json]) -> Iterator[tuple[Json, tuple[Line, ...]]]:
    """What is asked for again and again; after the first answer, also the lines that say so while
    there is none, or none of that GPU, as of an agent that has just started.
    """
    first = True
    while True:
        try:
            answer: tuple[Json, tuple[Line, ...]] = ask(), ()
        except NodeagentError as error:
            if first:
                raise
            status = {"phase": "unknown", "problems": [{"message": error.message}]}
            answer = status, (line(Span(error.message, Tone.BAD)), line(f"  {error.remedy}"))
        first = False
        yield answer


def watch(ask: Ask, lately: Lately, gpu: str | None, output: Output) -> None:
    """Draw what the keys choose, anew when anything on it changes, until q or Ctrl-C."""
    view, due = _View(gpu), 0.0
    failure: tuple[Line, ...] = ()
    typed = [sys.stdin.fileno()] if sys.stdin and sys.stdin.isatty() else []
    looks = answers(lambda: view.look(ask, lately))
    with _screen(typed) as show:
        while True:
            if time.monotonic() >= due:
                _, failure = next(looks)
                due = time.monotonic() + INTERVAL
            width, height = output.room
            keys = in_rows([line(dim(view.keys))], width)[:1] if typed else ()
            room = height - len(keys)
            page = failure or view.page(width, max(room, 1), marked=bool(keys))
            rows = in_rows(page, width)[:room]
            rows += (BLANK,) * (room - len(rows)) if keys else ()
            show(painted(output.drawable((*rows, *keys))))
            for key in _pressed(typed, min(due - time.monotonic(), _TICK)):
                if key == b"q":
                    return
                if view.press(key):
                    due = 0.0


class _View:
    """What the keys chose of the agent's last answer. `gpu`: the name of the one that is open."""

    def __init__(self, gpu: str | None) -> None:
        self._gpu, self._open, self._events_open, self._order = gpu, gpu is not None, False, 0
        self._all: Json = {}
        self._shown: Json = {}
        self._events: Sequence[Json] = ()

    def look(self, ask: Ask, lately: Lately) -> Json:
        """Ask for what is open; raises as `ask` does."""
        self._all = self._shown = ask(None)
        if self._open:
            self._shown = ask(self._gpu)
            self._gpu = str(self._shown["gpus"][0]["index"])
        self._events = lately(self._shown, self._gpu if self._open else None)
        return self._shown

    @property
    def keys(self) -> str:
        """What the keys do."""
        if self._events_open:
            return "e, Enter back  q quit"
        rest = "Enter back" if self._open else f"Enter details  s sort: {_ORDERS[self._order][0]}"
        return f"↑↓ GPU  {rest}  e events  q quit"

    def page(self, width: int, room: int, *, marked: bool) -> tuple[Line, ...]:
        """The page in at most `room` rows; `marked`: with a mark at the GPU that the keys chose."""
        if self._events_open:
            title, *events = events_page(self._shown, self._events)
            return (title, *in_rows(events, width)[-max(room - 1, 1) :])
        if self._open:
            more = f"nodeagent status --gpu {self._gpu} shows all"
            return at_most(gpu_page(self._shown, width), room, width, keep=2, more=more)
        gpus, at = self._gpus_and_place()
        gpus = [{**gpu, "marked": marked and n == at} for n, gpu in enumerate(gpus)]
        return status_page({**self._all, "gpus": gpus}, width, room, self._events)

    def press(self, key: bytes) -> bool:
        """Do what the key does; gives whether the agent has to be asked at once."""
        gpus, at = self._gpus_and_place()
        if key in b"e\r\n\x1b" and (key == b"e" or self._events_open):
            self._events_open = not self._events_open
        elif key == b"s":
            self._order = (self._order + 1) % len(_ORDERS)
        elif gpus and (key in b"\r\n" or (key == b"\x1b" and self._open)):
            self._gpu, self._open = str(gpus[at]["index"]), not self._open
            return True
        elif gpus and key in _ARROWS and not self._events_open:
            at = min(max(at + _ARROWS[key], 0), len(gpus) - 1)
            self._gpu = str(gpus[at]["index"])
            return self._open
        return False

    def _gpus_and_place(self) -> tuple[list[Json], int]:
        """The GPUs in their order, and the place of the chosen one: the first if none is."""
        gpus = sorted(self._all.get("gpus", ()), key=_ORDERS[self._order][1], reverse=True)
        return gpus, next((n for n, gpu in enumerate(gpus) if str(gpu["index"]) == self._gpu), 0)


def _pressed(typed: list[int], seconds: float) -> list[bytes]:
    """The keys that are pressed within this time; q when the terminal is gone."""
    ready = select.select(typed, [], [], max(seconds, 0))[0]
    with suppress(OSError):
        return _KEY.findall(os.read(ready[0], 4096)) or [b"q"] if ready else []
    return [b"q"]


@contextmanager
def _screen(typed: Iterable[int]) -> Iterator[Callable[[str], None]]:
    """Take the whole terminal and its keys. It is given back at the end, at a signal that ends the
    program, and while that is stopped. Each call of the result shows a text, if it is another.
    """
    before = [(one, termios.tcgetattr(one)) for one in typed]
    shown: list[object] = [None]

    def take(*_: object) -> None:
        shown[0] = None
        with suppress(OSError, termios.error):
            os.write(1, _TAKE)
            for one in typed:
                tty.setcbreak(one, termios.TCSANOW)

    def give_back() -> None:
        with suppress(OSError, termios.error):
            for one, attributes in before:
                termios.tcsetattr(one, termios.TCSANOW, attributes)
            os.write(1, _GIVE_BACK)

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    def stop(*_: object) -> None:
        give_back()
        os.kill(os.getpid(), signal.SIGSTOP)

    def show(text: str) -> None:
        if shown[0] != text:
            shown[0] = text
            # No newline at the end, which would move the page up.
            sys.stdout.write(_CLEAR + text.removesuffix("\n"))
            sys.stdout.flush()

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, end)
    signal.signal(signal.SIGTSTP, stop)
    signal.signal(signal.SIGCONT, take)
    take()
    try:
        yield show
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a second Ctrl-C
        give_back()
