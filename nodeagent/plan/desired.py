"""What is requested: first as the document has it, then resolved against the node's cards.

`PlanDocument` is what `nodeagent.documents` makes of a text (a plan, or one configuration of a
mig-parted file). `DesiredNode` is what `nodeagent.plan.resolve` makes of that document for
the GPUs that are really there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Literal

from nodeagent.plan.observed import Gpu, ObservedNode, Placement
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import TimeSlice, WantedMps
from nodeagent.structs import Struct, field, replace

# --- the document -----------------------------------------------------------------------------


class InstanceEntry(Struct, frozen=True):
    """`count` instances of `profile` (as written); `start` in memory slices, None: anywhere."""

    profile: str
    count: int
    path: str
    start: int | None = None
    mps: MpsEntry | None = None


class MigDisabled(Struct, frozen=True):
    """MIG mode off."""

    path: str


class MigEnabled(Struct, frozen=True):
    """MIG mode on, instances left as they are."""

    path: str


class MigLayout(Struct, frozen=True):
    """MIG mode on and exactly these instances (none at all when empty)."""

    instances: tuple[InstanceEntry, ...]
    path: str


MigEntry = MigDisabled | MigEnabled | MigLayout


class ShareEntry(Struct, frozen=True):
    """`count` clients (None: however many come) that may each use `memory` bytes and `threads`
    percent (None: no limit).
    """

    name: str
    count: int | None
    memory: int | None
    threads: float | None
    path: str


class Shares(Struct, frozen=True, tag=True):
    """Clients with the limits of their shares."""

    entries: tuple[ShareEntry, ...]
    path: str


class Replicas(Struct, frozen=True, tag=True):
    """`count` clients with equal parts of memory and threads."""

    count: int
    path: str


class MpsEntry(Struct, frozen=True):
    """MPS as written; `together`: one daemon for all GPUs of the entry."""

    path: str
    clients: Shares | Replicas
    user: str | None = None
    enforce: str = "report"  # report | terminate
    oversubscribe: bool = False
    together: bool = False


SharedBy = Literal["off", "memory", "time"] | int
"""How claims share a GPU outside MIG mode: not at all; by amounts of memory, or in so many equal
parts, which MPS holds them to; by taking turns, where nothing holds them to their memory.
"""


class WhenInUse(StrEnum):
    """What to do about users of what must go."""

    WAIT = "wait"
    EVICT = "evict"


class PciFilter(Struct, frozen=True):
    """A mig-parted `device-filter`: 32-bit ids as in `0x233010DE`."""

    device: int
    subsystem: int | None = None


class DeviceSelector(Struct, frozen=True):
    """One item of `devices`, written as `text`: `device` is an index, a UUID (`GPU-...`) or a PCI
    address, in canonical spelling.
    """

    text: str
    path: str
    device: int | str


class PlanEntry(Struct, frozen=True):
    """One entry of the document; `devices` None means `all`.

    `path` leads to the entry (`gpus[2]`), `devices_path` to its devices. `dra`: what it leaves of
    its GPUs is for claims. `share` None: as the setting has it.
    """

    path: str
    devices: tuple[DeviceSelector, ...] | None
    devices_path: str
    model: str | None = None
    pci_filters: tuple[PciFilter, ...] = ()
    mig: MigEntry | None = None
    mps: MpsEntry | None = None
    time_slice: str | None = None
    when_in_use: WhenInUse = WhenInUse.WAIT
    dra: bool = True
    share: SharedBy | None = None

    def mps_entries(self) -> tuple[MpsEntry, ...]:
        """What the entry says of MPS, for GPUs as a whole and for single instances."""
        instances = self.mig.instances if isinstance(self.mig, MigLayout) else ()
        return tuple(mps for mps in (self.mps, *(i.mps for i in instances)) if mps is not None)


class PlanDocument(Struct, frozen=True):
    """A whole document. `digest` is `sha256:` and the hash of the text acted on."""

    entries: tuple[PlanEntry, ...]
    digest: str
    device_plugin_config: str | None = None


# --- resolved against the cards ---------------------------------------------------------------


class WantedInstance(Struct, frozen=True):
    """One MIG device that should exist: `slices` of compute in a GPU instance of `profile`.

    `profile` is the canonical name of one of the card's own profiles; `written` is its name in the
    plan where the plan spells it differently.
    """

    profile: str
    slices: int
    start: int | None
    path: str
    mps: WantedMps | None = None
    written: str = ""


class Layout(Struct, frozen=True):
    """MIG on with exactly these devices."""

    instances: tuple[WantedInstance, ...]
    path: str


DesiredMig = MigDisabled | MigEnabled | Layout


class Reserved(Struct, frozen=True):
    """Room on a GPU that is not this goal's: what is there stays, and nothing of the goal comes.

    `placement` None is the whole GPU, `profile` is "" then. `owner` names who holds it, for the
    reader, such as `claim team/trainer`; "": no claim does. With `shared` the owner says how the
    GPU as a whole is shared; what shares a device of an instance is the owner's in any case.
    """

    profile: str
    placement: Placement | None
    owner: str
    shared: bool = False

    def __str__(self) -> str:
        if self.placement is None:
            return f"the whole GPU ({self.owner})"
        owner = self.owner or "of no claim"
        return f"{self.profile} at slice {self.placement.start} ({owner})"


class DesiredGpu(Struct, frozen=True):
    """What one GPU should be; `mig` None leaves its MIG side alone.

    `mps` is for the GPU as a whole, outside MIG mode; what MIG devices shall have is in
    `Layout`'s instances, or, where the instances are left as they are, by `mps_by_device` (UUID of
    a MIG device there is now). None means that no daemon of ours is to be there; `time_slice` None
    that the interval is to be what it was before the agent set it. All of it is meant beside
    what is `reserved`. `dra`, `share`: as in `PlanEntry`. `ends`: a claim is over, and
    only what was made for it goes, on a GPU that is unhealthy as a whole, too.
    """

    mig: DesiredMig | None
    path: str
    when_in_use: WhenInUse = WhenInUse.WAIT
    mps: WantedMps | None = None
    mps_by_device: Mapping[str, WantedMps] = field(default_factory=dict)
    time_slice: TimeSlice | None = None
    reserved: tuple[Reserved, ...] = ()
    dra: bool = True
    share: SharedBy | None = None
    ends: bool = False


class DesiredNode(Struct, frozen=True):
    """What is desired of GPUs, by `Gpu.key`. GPUs that are not in here are not touched."""

    gpus: Mapping[str, DesiredGpu]
    digest: str = ""


# --- beside claims ----------------------------------------------------------------------------

# A claim's change works on that claim's instances alone, a plan on those that no claim has: each
# is planned as if the rest were not there. So neither sees the other's instances, and neither can
# take them away.

WithClaims = Callable[[DesiredGpu, Gpu], DesiredGpu]
"""Turns the goal of a GPU into one that leaves alone what claims have there."""


def unclaimed(observed: ObservedNode, with_claims: WithClaims) -> ObservedNode:
    """The node without the instances of claims, of which a document says nothing: what it wants of
    all MIG devices there are, it wants of the others.
    """
    nothing = DesiredGpu(None, "")
    gpus = tuple(without(gpu, with_claims(nothing, gpu).reserved) for gpu in observed.gpus)
    return replace(observed, gpus=gpus)


def node_with_claims(
    desired: DesiredNode, observed: ObservedNode, with_claims: WithClaims
) -> DesiredNode:
    """What is desired, changed to leave alone what claims have now."""
    here = {gpu.key: gpu for gpu in observed.gpus}
    gpus = {
        key: with_claims(goal, here[key]) if key in here else goal
        for key, goal in desired.gpus.items()
    }
    return replace(desired, gpus=gpus)


def without(gpu: Gpu, reserved: Sequence[Reserved]) -> Gpu:
    """The GPU without the instances that lie where something is reserved for one like them, and
    without how it is shared as a whole where that is not this goal's.
    """
    if any(one.shared for one in reserved):
        gpu = replace(gpu, mps=None, earlier_mode=None, earlier_time_slice=None)
    theirs = {(r.profile, r.placement) for r in reserved}
    if not theirs:
        return gpu
    mine = tuple(i for i in gpu.instances if (i.profile, i.placement) not in theirs)
    return replace(gpu, instances=mine)


def in_the_way(gpu: Gpu, reserved: Sequence[Reserved], impossible: str, path: str) -> Problem:
    """What is reserved forbids `impossible` now."""
    message = f"{impossible} beside {', '.join(map(str, reserved))}"
    ways = []
    if any(one.owner for one in reserved):
        ways.append("end its pods, `nodeagent claims` lists them")
    if not all(one.owner for one in reserved):
        status = f"`nodeagent status --gpu {gpu.index}`"
        ways.append(f"see with {status} what has no claim, and how it is removed")
    remedy = ", or ".join([*ways, "request what fits beside it"])
    return Problem(code=Code.IN_USE, message=message, remedy=remedy, gpu=gpu.uuid, path=path)
