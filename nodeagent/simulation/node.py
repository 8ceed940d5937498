"""The simulated node: its cards, and what commands and tests do to it from outside.

What programs do through NVML goes through `nvml_library.SimulatedLibrary`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from nodeagent.errors import UsageError
from nodeagent.simulation.admission import admit, require_room
from nodeagent.simulation.boards import Overrides, boards_text, load_board, parse_boards
from nodeagent.simulation.card import MIB, Card
from nodeagent.simulation.codes import Code
from nodeagent.simulation.faults import Fault, code_named
from nodeagent.simulation.journal import Journal
from nodeagent.simulation.places import Place, card_at, place_of
from nodeagent.simulation.sensors import is_known
from nodeagent.simulation.state import (
    ONLY_PARENT,
    WHOLE,
    CardState,
    Event,
    NodeState,
    Number,
    Process,
    ProcessKind,
)
from nodeagent.simulation.store import Store, start_time, uptime
from nodeagent.simulation.switches import Switches

XID = 0x8
BOUND, UNBOUND = 2, 1  # NVML's types of system events
SYSTEM = -1  # in the place of a GPU, in events about the node
_NO_REAL_PID = 4_200_000  # above Linux's limit for process ids (2^22)
_EVENTS_KEPT = 256
_NO_PART = (ONLY_PARENT, ONLY_PARENT)


class SimulatedNode:
    """One node, to be closed, without NVML in front of it. Safe for several threads.

    `boards` as in `h100-80gb:8` or `a100-40gb:2,t4:1`; it may be left out when the `state` file
    exists. `mirrored` names the GPUs (or all) whose instance ids count from the other side.
    `clock` has the seconds by which loads are counted; a test may put its own there. Raises
    UsageError and NodeagentError.
    """

    def __init__(
        self,
        boards: str | None = None,
        *,
        state: Path | None = None,
        switches: Switches | None = None,
        overrides: Overrides | None = None,
        mirrored: bool | Collection[int] = False,
    ) -> None:
        names = parse_boards(boards) if boards else ()
        self.cards: tuple[Card, ...] = ()
        self.journal = Journal()
        self.clock: Callable[[], float] = uptime
        new = NodeState([], switches=switches or Switches())
        store = self.store = Store(state, new, self._take_over)
        self.looks, self.changes, self.close = store.looks, store.changes, store.close
        try:
            with self.changes():  # reads the file, if there is one
                if self.cards:
                    self._resume(names, switches, overrides)
                else:
                    self._begin(names, overrides or {}, mirrored)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def state(self) -> NodeState:
        """Another one whenever another process changed it."""
        return self.store.state

    @property
    def switches(self) -> Switches:
        return self.state.switches

    @property
    def faults(self) -> list[Fault]:
        return self.state.faults

    def next_serial(self) -> int:
        self.state.serial += 1
        return self.state.serial

    def last_session_closed(self) -> None:
        """No process has NVML initialised any more, which may cost cards their mode."""
        if any(not card.state.persistence for card in self.cards):
            with self.changes():
                for card in self.cards:
                    card.last_client_left()

    # --- the state --------------------------------------------------------------------------

    def _begin(
        self, boards: Sequence[str], overrides: Overrides, mirrored: bool | Collection[int]
    ) -> None:
        if not boards:
            raise UsageError(
                "there is no simulated node yet, so its boards must be named",
                remedy="for example h100-80gb:8",
            )
        persistence = self.switches.persistence_mode
        if isinstance(mirrored, bool):
            mirrored = range(len(boards)) if mirrored else ()
        self.state.gpus = [
            CardState(name, index in mirrored, persistence=persistence)
            for index, name in enumerate(boards)
        ]
        self.state.overrides = overrides
        self.cards = self._make_cards(self.state)

    def _resume(
        self, boards: Sequence[str], switches: Switches | None, overrides: Overrides | None
    ) -> None:
        found = tuple(card.board.name for card in self.cards)
        if boards and boards != found:
            raise UsageError(
                f"the state file holds a node with {boards_text(found)} "
                f"and not {boards_text(boards)}",
                remedy="leave the boards out, or name another file",
            )
        if switches is not None:
            self.state.switches = switches
        if overrides is not None and overrides != self.state.overrides:
            self.state.overrides = overrides
            self.cards = self._make_cards(self.state)

    def _make_cards(self, state: NodeState) -> tuple[Card, ...]:
        return tuple(
            Card(index, load_board(gpu.board, state.overrides), gpu, self)
            for index, gpu in enumerate(state.gpus)
        )

    def _take_over(self, state: NodeState) -> None:
        same = [c.board.name for c in self.cards] == [gpu.board for gpu in state.gpus]
        if same and state.overrides == self.state.overrides:
            for card, gpu in zip(self.cards, state.gpus, strict=True):
                card.take_over(gpu)
        else:
            self.cards = self._make_cards(state)

    # --- what is done to it from outside ------------------------------------------------------

    def occupy(
        self,
        device: str | int,
        pid: int | None = None,
        *,
        command: str = "python",
        memory: int | None = 256 * MIB,
        kind: str = "compute",
        follow: bool = False,
        limit: int | None = None,
    ) -> Process:
        """Put a process on a device: a GPU (index, UUID, PCI address) or a MIG device (UUID, or
        `GPU/GI/CI` by index and ids).

        `memory` in bytes, None where the driver does not know. Without `pid` it gets one that no
        real process can have. With `follow` the pid is a process of this machine, whose end
        frees the device. `limit`: the bytes that its MPS server lets it have. Raises UsageError,
        also where the compute mode keeps it out.
        """
        if kind not in list(ProcessKind):
            raise UsageError(f"no process is {kind!r}", remedy="compute, graphics or mps")
        with self.changes():
            place = self.find(device)
            if pid is None:
                taken = [p.pid for card in self.cards for p in card.state.processes]
                pid = max([_NO_REAL_PID, *taken]) + 1
            elif pid < 1:
                raise UsageError(f"{pid} is no process id", remedy="a number from 1")
            started = start_time(pid) if follow else None
            if follow and started is None:
                raise UsageError(f"there is no process {pid} on this machine")
            process = Process(
                pid,
                command,
                ProcessKind(kind),
                memory,
                place.instance,
                place.compute,
                started,
                limit,
            )
            admit(process, place, device)
            place.card.state.processes.append(process)
            return process

    def allocate(self, device: str | int, pid: int, memory: int) -> None:
        """Let a process have so many bytes in all. Raises UsageError where a program would be out
        of memory, which has what it had then.
        """
        with self.changes():
            place = self.find(device)
            for process in place.card.state.processes:
                if process.pid == pid and place.holds(process):
                    require_room(memory, process, place, device)
                    process.memory = memory
                    return
            raise UsageError(f"there is no process {pid} on {device}")

    def capabilities(self) -> dict[int, tuple[int, int, int | None]]:
        """GPU, GPU instance and compute instance (None: the GPU instance itself) by the number of
        the capability file, as /proc/driver/nvidia-caps/mig-minors has them.
        """
        parts = (None, *range(8))
        keys = [(card.index, i, part) for card in self.cards for i in range(15) for part in parts]
        return dict(enumerate(keys, start=3))

    def pcie_root(self, address: str) -> str:
        """The root of the bus at which a card with this PCI address is; "" where there is none."""
        found = (c.identity.pcie_root for c in self.cards if c.identity.answers_to(address))
        return next(found, "")

    def real_pids(self) -> frozenset[int]:
        """The processes on the node's devices that are processes of this machine."""
        with self.looks():
            return frozenset(process.pid for process in self.store.followed())

    def release(self, device: str | int | None = None, pid: int | None = None) -> int:
        """Take processes away: of one device, or one process, or all; how many those were."""
        with self.changes():
            place = None if device is None else self.find(device)
            gone = 0
            for card in self.cards:
                kept = [
                    p
                    for p in card.state.processes
                    if (pid is not None and p.pid != pid)
                    or (place is not None and not (place.card is card and place.holds(p)))
                ]
                gone += len(card.state.processes) - len(kept)
                card.state.processes = kept
            return gone

    def load(self, device: str | int, share: float) -> None:
        """Keep a GPU, or the GPU instance of a MIG device, busy from now on; 0 to 1.

        On a GPU in MIG mode only instances can have work. Raises UsageError.
        """
        if not 0 <= share <= 1:
            raise UsageError(f"a load of {share:g} is not from 0 to 1")
        with self.changes():
            place = self.find(device)
            card, serial = place.card, place.serial
            if serial == WHOLE and card.state.mig:
                raise UsageError(f"GPU {card.index} is in MIG mode: only its instances have work")
            card.put_load(serial, share)

    def set_figures(self, device: str | int, figures: Mapping[str, Number | None]) -> None:
        """Let sensors report these from now on; None: what follows from the load again.

        `sensors.NAMES` and `sensors.NUMBERED` have the names, in NVML's units. Raises UsageError
        for a name that there is not.
        """
        with self.changes():
            place = self.find(device)
            for name, value in figures.items():
                if not is_known(name):
                    raise UsageError(f"no sensor is called {name!r}")
                place.card.sensors.set_figure(name, value, place.serial)

    def inject(
        self,
        function: str = "*",
        *,
        error: int | str = 0,
        times: int | None = 1,
        gpu: int | None = None,
        **how: Any,
    ) -> Fault:
        """Make calls go wrong; the meaning, also of what else is given, is that of `Fault`, with
        `times` None for ever. Raises UsageError.
        """
        fault = Fault.checked(number=0, function=function, error=error, times=times, gpu=gpu, **how)
        with self.changes():
            if gpu is not None:
                self.card(gpu)
            fault.number = self.next_serial()
            self.state.faults.append(fault)
            return fault

    def clear_faults(self, fault: Fault | None = None) -> None:
        """Take one fault back, or all; calls that it holds go on."""
        with self.changes():
            keep = [] if fault is None else [f for f in self.faults if f.number != fault.number]
            self.state.faults = keep

    def lose(self, gpu: int, *, error: int | str = Code.GPU_IS_LOST) -> None:
        """Let every call on a GPU fail (GPU_IS_LOST or RESET_REQUIRED) until reset or reboot."""
        with self.changes():
            self.card(gpu).state.failure = code_named(error, known=True)

    def swap(self, gpu: int) -> None:
        """Put another card of the kind in the place of one, without a reboot. In this process."""
        with self.changes():
            self.card(gpu).swap()

    def reset(self, gpu: int) -> None:
        """Reset a GPU as `nvidia-smi --gpu-reset` does; raises Refused (IN_USE)."""
        with self.changes():
            self.card(gpu).reset()

    def reboot(self) -> None:
        """What a reboot does: processes and instances are gone, and with them the MIG mode of
        cards that do not keep it. Faults stay.
        """
        with self.changes():
            for card in self.cards:
                card.reboot(persistence=self.switches.persistence_mode)

    def unload_driver(self, *, error: int | str = Code.DRIVER_NOT_LOADED) -> None:
        """Every call answers this error, until the driver is loaded again."""
        with self.changes():
            self.state.driver_failure = code_named(error, known=True)

    def load_driver(self) -> None:
        """The driver is back: cards as after a reboot, all handles stale, NVML to initialise."""
        with self.changes():
            self.state.driver_failure = 0
            self.state.epoch += 1
            self.reboot()

    def report(self, gpu: int, kind: int, data: int = 0, part: tuple[int, int] = _NO_PART) -> None:
        """Report an event of NVML's type `kind` to every event set that wants it.

        `part` are the ids of the GPU instance and compute instance that it is about.
        """
        with self.changes():
            events = self.state.events
            last = events[-1].number if events else 0
            events.append(Event(last + 1, gpu, kind, data, *part))
            del events[:-_EVENTS_KEPT]

    def xid(self, device: str | int, number: int) -> None:
        """Report an XID of a GPU or MIG device."""
        with self.changes():
            card, instance, compute = self.find(device)
            part = _NO_PART if instance is None or compute is None else (instance, compute)
            self.report(card.index, XID, number, part)

    def bind(self, gpu: int, *, bound: bool) -> None:
        """Report that the driver was bound to a GPU, or taken off it."""
        # What the kernel driver makes of domain, bus and device (gpuGenerate32BitId in NVIDIA's
        # open kernel modules).
        identity = self.card(gpu).identity
        number = identity.pci_domain << 16 | identity.pci_bus << 8
        self.report(SYSTEM, BOUND if bound else UNBOUND, number)

    # --- looking things up ------------------------------------------------------------------

    def card(self, index: int) -> Card:
        """Raises UsageError."""
        return card_at(self.cards, index)

    def find(self, device: str | int) -> Place:
        """A device as `occupy` names it; raises UsageError."""
        return place_of(self.cards, device)
