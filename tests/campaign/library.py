"""NVML as the agent has it: calls that hang, a process that comes in the middle of the work, a
process that is killed there, and a count of every attempt to take away what is in use.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.arguments import HandleIn
from nodeagent.simulation.functions import FUNCTIONS
from nodeagent.simulation.handles import Handle, Kind
from nodeagent.simulation.nvml_library import SimulatedLibrary
from nodeagent.simulation.state import Process
from tests.campaign.clock import CLOCK, Killed, turn_of_this_thread
from tests.campaign.episode import WORKING

LIST = "nvmlDeviceGetComputeRunningProcesses*"
_TIMEOUT = 10
_PROOF = 5.0  # seconds for which having found a device idle counts
_LATE = 4  # times as long as asked for, a wait for events may take


@dataclass(slots=True, eq=False)
class Hold:
    """A call that does not return. The first `skip` that match do."""

    function: str
    skip: int


@dataclass(slots=True, eq=False)
class Arrival:
    """What happens right before a call, or before the agent begins a change (WORKING). The first
    `skip` that match are none.
    """

    function: str
    skip: int
    happen: Callable[[], None]


@dataclass(slots=True)
class Border:
    """What the machine does to the agent's process, and what it saw that process do.

    `kill_at`: the change of the machine at which the process is killed, counted from here.
    `full_at`: the write from which on there is no room, below `full_in` or anywhere, or nothing may
    be changed where it is `read_only`. `was_full`: whether a write anywhere failed so in this life.
    `arrivals`: what comes in the middle of its work. `ignored`: functions that report success and
    do nothing. `failures`: the codes of changes of each GPU that failed since it began the last
    change.
    """

    node: SimulatedNode
    strict: bool
    dead: bool = False
    kill_at: int | None = None
    full_at: int | None = None
    full_in: str = ""
    read_only: bool = False
    was_full: bool = False
    ignored: list[str] = field(default_factory=list)
    failures: dict[int, list[int]] = field(default_factory=dict)
    holds: list[Hold] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    attempts: list[str] = field(default_factory=list)
    _looks: Counter[int] = field(default_factory=Counter)  # at a GPU's processes
    _came: dict[int, tuple[float, int]] = field(default_factory=dict)  # by pid: when, and looks
    _there: set[int] = field(default_factory=set)  # pids, when the last change was begun

    @property
    def is_hindered(self) -> bool:
        return bool(self.holds or self.ignored or self.full_at is not None)

    def end_faults(self) -> None:
        """The driver and the disk are well again."""
        self.holds.clear()
        self.ignored.clear()
        self.full_at, self.full_in, self.read_only = None, "", False

    def begin_work(self) -> None:
        """The agent says that it begins a change: it has to look for users from now on."""
        self._happen(WORKING)
        self._there = set(self._came)
        self.failures.clear()

    def forget(self) -> None:
        self._came.clear()
        self._there.clear()
        self._looks.clear()

    def came(self, process: Process, gpu: int) -> None:
        self._came[process.pid] = (CLOCK.now, self._looks[gpu])
        self._there.discard(process.pid)  # of one that ended since

    def change(self) -> None:
        """The process is about to change something; raises Killed."""
        if self.kill_at is not None:
            self.kill_at -= 1
            self.dead = self.dead or self.kill_at <= 0
        if self.dead:
            raise Killed

    def call(self, name: str, handle: Handle | None) -> None:
        """The process is about to call NVML; raises Killed."""
        if self.arrivals:
            self._happen(name)
        if FUNCTIONS[name].changes:
            self.change()
        elif self.dead:
            raise Killed
        if self.holds:
            self._hold(name)
        if handle is not None and handle.kind is Kind.GPU and fnmatchcase(name, LIST):
            self._looks[handle.gpu] += 1

    def ignores(self, name: str) -> bool:
        return any(fnmatchcase(name, one) for one in self.ignored)

    def _happen(self, name: str) -> None:
        for arrival in [one for one in self.arrivals if fnmatchcase(name, one.function)]:
            arrival.skip -= 1
            if arrival.skip < 0:
                self.arrivals.remove(arrival)
                arrival.happen()

    def _hold(self, name: str) -> None:
        hold = next((one for one in self.holds if fnmatchcase(name, one.function)), None)
        turn = turn_of_this_thread()
        if hold is None or turn is None:
            return
        if hold.skip > 0:
            hold.skip -= 1
        elif hold.skip == 0:
            hold.skip = -1  # it has its call
            turn.park(lambda: hold not in self.holds)

    # --- who must not be harmed -------------------------------------------------------------------

    def take_away(self, name: str, handle: Handle, enabled: bool, asked: float) -> None:
        """The driver takes a device away, as it was `asked` to then: it may have hung since. Where
        it is not strict it does so under programs, which end.
        """
        card = self.node.cards[handle.gpu]
        users = [p for p in card.state.processes if self._concerns(p, name, handle, enabled)]
        for user in users:
            came, looks = self._came[user.pid]
            if came > asked:
                continue
            was_there = user.pid in self._there and not enabled  # which only the driver refuses
            if was_there or self._looks[handle.gpu] > looks or CLOCK.now - came > _PROOF:
                self.attempts.append(f"{name} under process {user.pid} on GPU {handle.gpu}")
        if users and not self.strict:
            self.node.state.gpus[handle.gpu].processes = [
                p for p in card.state.processes if p not in users
            ]

    def _concerns(self, process: Process, name: str, handle: Handle, enabled: bool) -> bool:
        card = self.node.cards[handle.gpu]
        if name == "nvmlDeviceSetMigMode":
            return enabled != card.state.mig
        parts = {
            (instance.id, compute.id)
            for instance in card.state.instances
            for compute in instance.compute
            if handle.serial in {instance.serial, compute.serial}
        }
        return (process.instance, process.compute) in parts


_TAKING = {"nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy", "nvmlDeviceSetMigMode"}


class BorderLibrary:
    """`libnvidia-ml.so.1` of one process of the machine."""

    def __init__(self, border: Border) -> None:
        self._border = border
        self._library = SimulatedLibrary(border.node)

    def forget(self) -> None:
        """The process is no more, and the driver notices."""
        session = self._library.session
        while session.initialised > 0:
            session.shut()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self._library, name)
        known = FUNCTIONS[name]
        if known.raw:
            return function
        border, session = self._border, self._library.session
        first = next(iter(known.arguments), None)
        concerns = known.changes or fnmatchcase(name, LIST)

        def call(*given: Any) -> Any:
            handle = None
            if concerns and isinstance(first, HandleIn):
                handle = first.handle(session, first.take(given[0], name), name)
            asked = CLOCK.now
            border.call(name, handle)
            if name in _TAKING and handle is not None:
                enabled = name.endswith("MigMode") and bool(given[1])
                border.take_away(name, handle, enabled, asked)
            if name == "nvmlSystemEventSetWait":
                given[0]._obj.timeoutms = 0  # or it would wait in real time
            code = 0 if border.ignored and border.ignores(name) else function(*given)
            if code and known.changes and handle is not None:
                border.failures.setdefault(handle.gpu, []).append(code)
            return code

        return call if name != "nvmlEventSetWait_v2" else self._waiting(call)

    def _waiting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A wait for events in the machine's time. A driver may be late, which saves many waits."""
        node = self._border.node

        def wait(events: Any, data: Any, milliseconds: Any) -> Any:
            code = call(events, data, type(milliseconds)(0))
            turn = turn_of_this_thread()
            seconds = _LATE * getattr(milliseconds, "value", milliseconds) / 1000
            if code != _TIMEOUT or not seconds or turn is None:
                return code
            until, last = CLOCK.now + seconds, node.state.events[-1:]
            turn.park(lambda: CLOCK.now >= until or node.state.events[-1:] != last, until)
            if node.state.events[-1:] == last:
                return code
            return call(events, data, type(milliseconds)(0))

        return wait
