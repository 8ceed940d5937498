"""How one card behaves: MIG mode, GPU and compute instances, who uses it, what it refuses.

Plain Python: what a call means, not how C passes it. A method that the driver would answer with
an error raises `Refused` and leaves the card as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from nodeagent.simulation import geometry
from nodeagent.simulation.boards import Board, ComputeProfile, GpuProfile, InstancePlacement, Slices
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.identity import Identity
from nodeagent.simulation.sensors import Sensors
from nodeagent.simulation.state import WHOLE, CardState, ComputeInstance, GpuInstance, Process

if TYPE_CHECKING:
    from nodeagent.simulation.node import SimulatedNode

MIB = 1 << 20
MIG_CONFIG_CHANGE = 0x100

_Place = TypeVar("_Place", bound=Slices)


class Card:
    """One GPU of the node. Its `state` is replaced when another process changed it."""

    def __init__(self, index: int, board: Board, state: CardState, node: SimulatedNode) -> None:
        self.index = index
        self.board: Board = board
        self._node = node
        self.identity = Identity(board.name, index)
        self.take_over(state)

    def take_over(self, state: CardState) -> None:
        """Be what another process made of the card; raises Refused when it cannot be."""
        for instance in state.instances:
            self.profile(instance.profile)
            for compute in instance.compute:
                self.compute_profile(instance, compute.profile)
        self.state: CardState = state
        self.sensors: Sensors = Sensors(self.board, state.activity, self.now)

    def now(self) -> float:
        """The node's clock, in seconds."""
        return self._node.clock()

    # --- what is there --------------------------------------------------------------------

    def mig_uuid(self, instance: GpuInstance, compute: ComputeInstance) -> str:
        """The same place on the same board gives the same UUID (unless a switch says not)."""
        fresh = compute.serial if self._node.switches.new_uuid_on_recreate else 0
        return self.identity.mig_uuid(instance.id, compute.id, fresh)

    def mig_devices(self) -> Iterator[tuple[GpuInstance, ComputeInstance]]:
        """In NVML's order: ascending GPU instance id, then compute instance id."""
        for instance in sorted(self.state.instances, key=lambda i: i.id):
            for compute in sorted(instance.compute, key=lambda c: c.id):
                yield instance, compute

    # --- users ----------------------------------------------------------------------------

    def processes(self, instance: int | None = None, compute: int | None = None) -> list[Process]:
        """Everyone on the card, or on one compute instance."""
        if instance is None:
            return self.state.processes
        return [p for p in self.state.processes if p.instance == instance and p.compute == compute]

    # --- MIG mode -------------------------------------------------------------------------

    def set_mig_mode(self, *, enabled: bool) -> Code:
        """The activation status: the call itself succeeds even where the change has to wait."""
        self.require_mig_capable()
        state, switches = self.state, self._node.switches
        if switches.pending_mode_stays and enabled == state.mig != state.pending:
            return Code.IN_USE
        state.pending = enabled
        if enabled == state.mig:
            return Code.SUCCESS
        if state.processes:
            return Code.IN_USE
        if not enabled and state.instances and switches.disable_needs_no_instances:
            return Code.IN_USE
        if self._mode_waits_for_reset:
            return Code.RESET_REQUIRED
        self._activate(enabled)
        return Code.SUCCESS

    @property
    def _mode_waits_for_reset(self) -> bool:
        switches = self._node.switches
        if self.board.mode_change_needs_reset:
            return switches.passthrough or switches.ampere_mode == "pending"
        return switches.hopper_mode == "pending"

    def _activate(self, enabled: bool) -> None:
        self.state.mig = self.state.pending = enabled
        self.state.compute_mode = 0
        self._forget(list(self.state.instances))
        self._config_changed()

    def require_mig_capable(self) -> None:
        if not self.board.has_mig:
            raise Refused(Code.NOT_SUPPORTED)

    def require_capability(self, least: tuple[int, int]) -> None:
        """What older architectures do not have."""
        if self.board.compute_capability < least:
            raise Refused(Code.NOT_SUPPORTED)

    def require_mig(self) -> None:
        if not self.state.mig:
            raise Refused(Code.NOT_SUPPORTED)

    # --- the life of the machine ----------------------------------------------------------

    def swap(self) -> None:
        """Another card comes to this one's place."""
        self.identity = self.identity.successor()
        self.reboot(persistence=self.state.persistence)

    def reset(self) -> None:
        """A GPU reset of a card that is not in use; raises IN_USE otherwise."""
        if self.state.processes:
            raise Refused(Code.IN_USE)
        waits = self._mode_waits_for_reset
        self._start_over(mode_kept=self.board.mode_change_needs_reset or waits)

    def reboot(self, *, persistence: bool) -> None:
        """What a reboot or a reload of the driver leaves of the card."""
        self.state.processes.clear()
        self.state.persistence = persistence
        self._start_over(mode_kept=self.board.mode_survives_reboot)

    def last_client_left(self) -> None:
        """Without persistence mode the driver forgets the card when no process has it open."""
        if not (self.state.persistence or self.state.processes or self.state.failure):
            self._start_over(mode_kept=self.board.mode_survives_reboot)

    def _start_over(self, *, mode_kept: bool) -> None:
        state = self.state
        before = (state.mig, state.pending, len(state.instances))
        state.mig = state.pending = state.pending and mode_kept
        state.instances.clear()
        self.sensors.start_over()
        state.failure = 0
        state.compute_mode = state.time_slice = 0
        if before != (state.mig, state.pending, 0):
            self._config_changed()

    def _config_changed(self) -> None:
        self._node.report(self.index, MIG_CONFIG_CHANGE)

    # --- GPU instances --------------------------------------------------------------------

    def profile(self, profile: int) -> GpuProfile:
        """By the id that create calls take."""
        found = self.board.profile(profile)
        if found is None:
            raise Refused(Code.INVALID_ARGUMENT if self.board.has_mig else Code.NOT_SUPPORTED)
        return found

    def instance(self, number: int) -> GpuInstance:
        for instance in self.state.instances:
            if instance.id == number:
                return instance
        raise Refused(Code.NOT_FOUND)

    def remaining(self, profile: int) -> int:
        """How many more instances of that profile fit now."""
        kind, present = self.profile(profile), self.state.instances
        if not self._may_join(kind):
            return 0
        left = kind.max_instances - sum(i.profile == kind.id for i in present)
        return min(geometry.room(kind.placements, geometry.occupied(present)), left)

    def create_instance(self, profile: int, place: tuple[int, int] | None = None) -> GpuInstance:
        """A new GPU instance at (start, size) in memory slices, or where the driver likes."""
        self.require_mig()
        kind = self.profile(profile)
        placement = None if place is None else _placement(kind.placements, place)
        if any(process.instance is None for process in self.state.processes):
            raise Refused(Code.IN_USE)
        if not self._may_join(kind):
            raise Refused(Code.INSUFFICIENT_RESOURCES)
        taken = geometry.occupied(self.state.instances)
        if placement is None:
            every = (place for p in self.board.profiles for place in p.placements)
            placement = geometry.choose(kind.placements, taken, keep=every, order=self._id_at)
        if placement is None or placement.mask & taken:
            raise Refused(Code.INSUFFICIENT_RESOURCES)
        made = GpuInstance(
            id=self._id_at(placement),
            profile=kind.id,
            start=placement.start,
            size=placement.size,
            serial=self._node.next_serial(),
        )
        self.state.instances.append(made)
        self._config_changed()
        return made

    def destroy_instance(self, instance: GpuInstance) -> None:
        if instance.compute:
            raise Refused(Code.IN_USE)
        if instance.settling:
            instance.settling = False
            raise Refused(Code.IN_USE)
        self._forget([instance])
        self._config_changed()

    def _forget(self, gone: list[GpuInstance]) -> None:
        """Instances and their load; the card's load is now that of those that are left."""
        self.state.instances = [i for i in self.state.instances if i not in gone]
        self.sensors.forget_instances(i.serial for i in gone)
        if self.state.activity.growing:
            self.put_load(WHOLE, self.state.activity.loads.get(WHOLE, 0.0))

    def _may_join(self, profile: GpuProfile) -> bool:
        present = [self.profile(i.profile) for i in self.state.instances]
        return geometry.may_join(profile, present)

    def _id_at(self, placement: InstancePlacement) -> int:
        return placement.mirrored_id if self.state.mirrored else placement.id

    # --- compute instances ----------------------------------------------------------------

    def compute_profile(self, instance: GpuInstance, profile: int) -> ComputeProfile:
        """By the id that create calls take, which for these is NVML's enumeration too."""
        found = self.profile(instance.profile).compute_profile(profile)
        if found is None:
            raise Refused(Code.INVALID_ARGUMENT)
        return found

    def compute_instance(self, instance: GpuInstance, number: int) -> ComputeInstance:
        for compute in instance.compute:
            if compute.id == number:
                return compute
        raise Refused(Code.NOT_FOUND)

    def compute_remaining(self, instance: GpuInstance, profile: int) -> int:
        """How many more compute instances of that profile fit now."""
        kind, present = self.compute_profile(instance, profile), instance.compute
        used = sum(self.compute_profile(instance, c.profile).slices for c in present)
        return min(
            geometry.room(kind.placements, geometry.occupied(present)),
            (self.profile(instance.profile).slices - used) // kind.slices,
            kind.max_instances - sum(c.profile == profile for c in present),
        )

    def create_compute(
        self, instance: GpuInstance, profile: int, place: tuple[int, int] | None = None
    ) -> ComputeInstance:
        """A new compute instance at (start, size) in compute slots, or where the driver likes.

        Ampere takes the first fit, Hopper and later keep an aligned tree.
        """
        kind = self.compute_profile(instance, profile)
        placement = None if place is None else _placement(kind.placements, place)
        if self.compute_remaining(instance, profile) < 1:
            raise Refused(Code.INSUFFICIENT_RESOURCES)
        taken = geometry.occupied(instance.compute)
        if placement is None:
            aligned = self.board.compute_placement == "alignedTree"
            siblings = self.profile(instance.profile).compute if aligned else ()
            every = (place for p in siblings for place in p.placements)
            placement = geometry.choose(kind.placements, taken, keep=every, order=lambda p: p.start)
        if placement is None or placement.mask & taken:
            raise Refused(Code.INSUFFICIENT_RESOURCES)
        used = {c.id for c in instance.compute}
        made = ComputeInstance(
            id=next(number for number in range(len(used) + 1) if number not in used),
            profile=kind.id,
            start=placement.start,
            size=placement.size,
            serial=self._node.next_serial(),
        )
        instance.compute.append(made)
        instance.settling = False
        self._config_changed()
        return made

    def destroy_compute(self, instance: GpuInstance, compute: ComputeInstance) -> None:
        if self.processes(instance.id, compute.id):
            raise Refused(Code.IN_USE)
        instance.compute.remove(compute)
        instance.settling = not instance.compute and self._node.switches.gi_destroy_race
        self._config_changed()

    # --- load -----------------------------------------------------------------------------

    def put_load(self, serial: int, share: float) -> None:
        """Let the card, or one of its instances, be busy from now on."""
        loads = self.state.activity.loads
        loads[serial] = share
        if self.state.mig:
            parts = (
                loads.get(i.serial, 0.0) * self.profile(i.profile).slices
                for i in self.state.instances
            )
            load = sum(parts) / self.board.compute_slices
        else:
            load = loads.get(WHOLE, 0.0)
        self.sensors.put_load(serial, share, load)


def _placement(placements: Iterable[_Place], place: tuple[int, int]) -> _Place:
    """The one at this start and size; raises Refused."""
    for placement in placements:
        if (placement.start, placement.size) == place:
            return placement
    raise Refused(Code.INVALID_ARGUMENT)
