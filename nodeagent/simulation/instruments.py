"""What tests and commands do to a node's sensors: put load on it, set figures, count errors."""

from __future__ import annotations

from nodeagent.errors import UsageError
from nodeagent.simulation.activity import WHOLE, Number, of_instance
from nodeagent.simulation.card import Card
from nodeagent.simulation.sensors import is_known
from nodeagent.simulation.state import ONLY_PARENT
from nodeagent.simulation.stored_node import StoredNode

BOUND, UNBOUND = 2, 1  # NVML's types of system events
_SYSTEM = -1  # in the place of a GPU, in events about the node


class InstrumentedNode(StoredNode):
    """The part of the node that is about what sensors say."""

    def find(self, device: str | int) -> tuple[Card, int | None, int | None]:
        """A device: card, GPU instance id, compute instance id; raises UsageError."""
        raise NotImplementedError

    def load(self, device: str | int, share: float) -> None:
        """Keep a GPU, or the GPU instance of a MIG device, busy from now on; 0 to 1.

        On a GPU in MIG mode only instances can have work. Raises UsageError.
        """
        if not 0 <= share <= 1:
            raise UsageError(f"a load of {share:g} is not from 0 to 1")
        with self.changes():
            card, serial = self._place(device)
            if serial == WHOLE and card.state.mig:
                raise UsageError(f"GPU {card.index} is in MIG mode: only its instances have work")
            card.sensors.put_load(serial, share, self.clock())
            self.changed(card.index)

    def set_figure(self, device: str | int, name: str, value: Number | None) -> None:
        """Let a sensor say this from now on; None: what follows from the load again.

        `sensors.NAMES` has the names, in NVML's units; besides there are `field.NUMBER(.LINK)`,
        `gpm.METRIC`, `prm.COUNTER.PORT`, `link.LINK.up`, `nvlink.COUNTER.LINK`,
        `ecc.(un)corrected.(volatile|aggregate).LOCATION` and `process.PID.(sm|memory)`. Raises
        UsageError for a name that there is not.
        """
        if not is_known(name):
            raise UsageError(f"no sensor is called {name!r}")
        with self.changes():
            card, serial = self._place(device)
            figures = card.state.activity.figures
            if value is None:
                figures.pop(of_instance(name, serial), None)
            else:
                figures[of_instance(name, serial)] = value
            self.changed(card.index)

    def set_figures(self, device: str | int, figures: dict[str, Number]) -> None:
        """Several at once."""
        with self.changes():
            for name, value in figures.items():
                self.set_figure(device, name, value)

    def report(
        self,
        gpu: int,
        kind: int,
        data: int = 0,
        *,
        gi: int | None = None,
        ci: int | None = None,
    ) -> None:
        """Report an event of NVML's type `kind`, of a GPU or of an instance by its ids."""
        with self.changes():
            card, _ = self._place(gpu)
            if gi is not None:
                card.instance(gi)
            none = ONLY_PARENT
            self.emit(
                card.index, kind, data, none if gi is None else gi, none if ci is None else ci
            )

    def raise_xid(
        self, gpu: int, xid: int, *, gi: int | None = None, ci: int | None = None
    ) -> None:
        """Report an XID, of a GPU or of an instance by its ids."""
        self.report(gpu, 0x8, xid, gi=gi, ci=ci)

    def bind(self, gpu: int, *, bound: bool) -> None:
        """Report that the driver was bound to a GPU, or taken off it."""
        with self.changes():
            card, _ = self._place(gpu)
            # What the kernel driver makes of domain, bus and device (gpuGenerate32BitId in NVIDIA's
            # open kernel modules).
            number = card.identity.pci_domain << 16 | card.identity.pci_bus << 8
            self.emit(_SYSTEM, BOUND if bound else UNBOUND, number)

    def _place(self, device: str | int) -> tuple[Card, int]:
        card, instance, _ = self.find(device)
        return card, WHOLE if instance is None else card.instance(instance).serial
