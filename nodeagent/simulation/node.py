"""The simulated node, with what commands and tests do to it from outside.

`occupy`, `inject`, `reboot` and the like are methods here; what programs do through NVML goes
through `nvml_library.SimulatedLibrary`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from nodeagent.errors import UsageError
from nodeagent.simulation.admission import admit, mode_of
from nodeagent.simulation.boards import Overrides, parse_boards
from nodeagent.simulation.card import MIB, Card
from nodeagent.simulation.codes import Code
from nodeagent.simulation.faults import FOREVER, Fault, code_named
from nodeagent.simulation.instruments import InstrumentedNode
from nodeagent.simulation.processes import NO_REAL_PID, start_time
from nodeagent.simulation.state import ONLY_PARENT, Process, ProcessKind
from nodeagent.simulation.switches import Switches

XID = 0x8


class SimulatedNode(InstrumentedNode):
    """One node; made by `simulated` or `open_node`."""

    # --- what is done to a node from outside ------------------------------------------------

    def occupy(
        self,
        device: str | int,
        pid: int | None = None,
        *,
        command: str = "python",
        memory: int | None = 256 * MIB,
        kind: str = "compute",
        follow: bool = False,
    ) -> Process:
        """Put a process on a device: a GPU (index, UUID, PCI address) or a MIG device (UUID, or
        `GPU/GI/CI` by index and ids).

        `memory` in bytes, None where the driver does not know. Without `pid` it gets one that no
        real process can have. With `follow` the pid is a process of this machine, whose end
        frees the device. Raises UsageError, also where the compute mode keeps it out.
        """
        if kind not in list(ProcessKind):
            raise UsageError(f"no process is {kind!r}", remedy="compute, graphics or mps")
        with self.changes():
            card, instance, compute = self.find(device)
            if pid is None:
                taken = [p.pid for c in self.cards for p in c.state.processes]
                pid = max([NO_REAL_PID, *taken]) + 1
            elif pid < 1:
                raise UsageError(f"{pid} is no process id", remedy="a number from 1")
            process = Process(
                pid=pid,
                command=command,
                memory=memory,
                kind=ProcessKind(kind),
                instance=instance,
                compute=compute,
                started=start_time(pid) if follow else None,
            )
            if follow and process.started is None:
                raise UsageError(f"there is no process {pid} on this machine")
            there = card.processes(instance, compute)
            if any(p.pid == pid and p.instance == instance for p in there):
                raise UsageError(f"process {pid} is on {device} already")
            admit(mode_of(card, instance, compute), process, there)
            part = None if instance is None else card.instance(instance)
            total, used = card.memory(part)
            if memory is not None and not 0 <= memory <= total - used:
                raise UsageError(
                    f"{device} has {(total - used) // MIB} MiB free and not {memory // MIB} MiB"
                )
            card.state.processes.append(process)
            self.following |= follow
            self.changed(card.index)
            return process

    def real_pids(self) -> frozenset[int]:
        """The processes on the node's devices that are processes of this machine."""
        with self.looks():
            there = (process for card in self.cards for process in card.state.processes)
            return frozenset(process.pid for process in there if process.started is not None)

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
                    or (place is not None and not _is_at(place, card, p))
                ]
                gone += len(card.state.processes) - len(kept)
                card.state.processes = kept
            self.changed()
            return gone

    def inject(
        self,
        function: str = "*",
        *,
        error: int | str = 0,
        times: int | None = 1,
        skip: int = 0,
        gpu: int | None = None,
        delay: float = 0.0,
        hang: bool = False,
        at_call: int | None = None,
        applied: bool = False,
    ) -> Fault:
        """Make calls go wrong; the meaning is that of `Fault`, with `times` None for ever.
        Raises UsageError.
        """
        code = code_named(error)
        if not (code or delay or hang):
            raise UsageError("a fault needs an error, a delay or a hang")
        if delay < 0 or skip < 0 or (times is not None and times < 1) or at_call == 0:
            raise UsageError(
                "a fault counts from 0 up", remedy="times and at_call from 1, delay and skip from 0"
            )
        with self.changes():
            if gpu is not None:
                self.card(gpu)
            fault = Fault(
                number=self.next_serial(),
                function=function,
                gpu=gpu,
                error=code,
                times=FOREVER if times is None else times,
                skip=skip,
                at_call=at_call,
                delay=delay,
                hang=hang,
                applied=applied,
            )
            self.faults.append(fault)
            self.changed()
            return fault

    def clear_faults(self, fault: Fault | None = None) -> None:
        """Take one fault back, or all; calls that it holds go on."""
        with self.changes():
            keep = [] if fault is None else [f for f in self.faults if f.number != fault.number]
            self.faults = keep
            self.changed()

    def lose(self, gpu: int, *, error: int | str = Code.GPU_IS_LOST) -> None:
        """Let every call on a GPU fail (GPU_IS_LOST or RESET_REQUIRED) until reset or reboot."""
        with self.changes():
            self.card(gpu).state.failure = code_named(error, known=True)
            self.changed()

    def reset(self, gpu: int) -> None:
        """Reset a GPU as `nvidia-smi --gpu-reset` does; raises Refused (IN_USE)."""
        with self.changes():
            self.card(gpu).reset()

    def reboot(self) -> None:
        """What a reboot does: processes and instances are gone, and with them the MIG mode of
        cards that do not keep it. Faults stay.
        """
        with self.changes():
            self.reload()

    def unload_driver(self, *, error: int | str = Code.DRIVER_NOT_LOADED) -> None:
        """Every call answers this error, until the driver is loaded again."""
        with self.changes():
            self.driver_failure = code_named(error, known=True)
            self.changed()

    def load_driver(self) -> None:
        """The driver is back: cards as after a reboot, all handles stale, NVML to initialise."""
        with self.changes():
            self.driver_failure = 0
            self.epoch += 1
            self.reload()

    def xid(self, gpu: int, number: int, *, device: str | int | None = None) -> None:
        """Report an XID, of a MIG device when `device` names one."""
        with self.changes():
            card, instance, compute = self.find(gpu if device is None else device)
            none = ONLY_PARENT
            self.emit(
                card.index,
                XID,
                number,
                none if instance is None else instance,
                none if compute is None else compute,
            )

    # --- looking things up ------------------------------------------------------------------

    def card(self, index: int) -> Card:
        """Raises UsageError."""
        if not 0 <= index < len(self.cards):
            raise UsageError(
                f"the simulated node has no GPU {index}", remedy=f"0 to {len(self.cards) - 1}"
            )
        return self.cards[index]

    def find(self, device: str | int) -> tuple[Card, int | None, int | None]:
        """A device as `occupy` names it: card, GPU instance id, compute instance id."""
        text = str(device).strip()
        if text.isascii() and text.isdigit():
            return self.card(int(text)), None, None
        for card in self.cards:
            if card.identity.answers_to(text):
                return card, None, None
            for instance, compute in card.mig_devices():
                place = f"{card.index}/{instance.id}/{compute.id}"
                if text == place or text.upper() == card.mig_uuid(instance, compute).upper():
                    return card, instance.id, compute.id
        raise UsageError(
            f"the simulated node has no device {text!r}",
            remedy="an index, a PCI address, the UUID of a GPU or a MIG device, or GPU/GI/CI",
        )


def open_node(
    boards: str | None = None,
    *,
    state: Path | None = None,
    switches: Switches | None = None,
    overrides: Overrides | None = None,
    mirrored: bool | Collection[int] = False,
) -> SimulatedNode:
    """A node without NVML in front of it; the caller closes it. Arguments as `simulated`."""
    names = parse_boards(boards) if boards else ()
    if isinstance(mirrored, bool):
        mirrored = range(len(names)) if mirrored else ()
    return SimulatedNode(
        names, state=state, switches=switches, overrides=overrides, mirrored=mirrored
    )


def _is_at(place: tuple[Card, int | None, int | None], card: Card, process: Process) -> bool:
    there, instance, compute = place
    if there is not card:
        return False
    return instance is None or (process.instance, process.compute) == (instance, compute)
