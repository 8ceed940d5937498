"""What a claim was allocated on this node, and what stands for it on the hardware. Values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from nodeagent.claims.capacity import Consumed
from nodeagent.claims.names import DRIVER
from nodeagent.errors import NodeagentError, Transient
from nodeagent.plan.desired import MpsEntry
from nodeagent.plan.observed import GpuInstance, Placement
from nodeagent.plan.shares import TimeSlice, WantedMps
from nodeagent.plan.users import PodName
from nodeagent.structs import Struct

# The uids that may become part of a file's name or of a CDI device's.
UID: Final = re.compile(r"[0-9a-f][0-9a-f-]{0,63}")

Configuration = MpsEntry | TimeSlice


class ClaimRefused(NodeagentError):
    """A claim cannot be prepared as it is; nothing was done for it."""


class ClaimHeldUp(ClaimRefused, Transient):
    """A claim cannot be prepared yet: another one has its devices, or it was read too early."""


CLASSES: Final = (
    "`kubectl get deviceclass -o custom-columns=NAME:.metadata.name,CONFIG:.spec.config`"
)
"""Lists the device classes with their configurations."""


class ClaimReference(Struct, frozen=True):
    """A claim by namespace and name. Its commands are those that its tenant may run."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """`claim team/trainer`."""
        return f"claim {self.namespace}/{self.name}"

    @property
    def show(self) -> str:
        """Prints the claim with what it was allocated."""
        return f"`{self._get} -o yaml`"

    @property
    def describe(self) -> str:
        """Prints its Events, such as the scheduler's."""
        return f"`kubectl describe resourceclaim -n {self.namespace} {self.name}`"

    @property
    def schedule_anew(self) -> str:
        """Deletes the pods that have it; their controllers make them anew."""
        pods = f"{self._get} -o jsonpath='{{.status.reservedFor[*].name}}'"
        return f"`kubectl delete pod -n {self.namespace} $({pods})`"

    @property
    def _get(self) -> str:
        return f"kubectl get resourceclaim -n {self.namespace} {self.name}"


class Result(Struct, frozen=True):
    """A device that a claim was allocated.

    `request` is as in the allocation, `main` or `main/sub`. `configuration` is how the device shall
    be shared, None: as it is. With `admin_access` nothing is made, changed or destroyed for it.
    `consumed` is what it takes of a device that others may have, too; None: it has all of it.
    `driver` is the name by which the kubelet has it prepared and released.
    """

    request: str
    pool: str
    device: str
    share_id: str = ""
    admin_access: bool = False
    configuration: Configuration | None = None
    consumed: Consumed | None = None
    driver: str = DRIVER

    @property
    def main_request(self) -> str:
        return self.request.partition("/")[0]

    @property
    def key(self) -> tuple[str, str, str]:
        """Pool, device and share, which distinguish it from every other device of the node."""
        return self.pool, self.device, self.share_id


class RecordPhase(StrEnum):
    """How far a claim has come. What is written comes before what is done."""

    INTENT = "intent"  # its devices may have been made
    READY = "ready"  # read back, with its CDI file: the kubelet may have been answered
    RELEASING = "releasing"  # being taken down


class ClaimedDevice(Struct, frozen=True):
    """What stands for one result on the GPU with the UUID `gpu`.

    `profile` and `placement` are those of a MIG device's GPU instance; "" and None for the GPU as
    a whole or a share of it. With `fixed` the instance is the plan's. `before` are id and placement
    of the GPU instances that were there when its making began, None as long as it has not.
    `instance`, `compute` and `uuid` (of the MIG device) are what was made; None and "" while that
    is not known. `mps` is the daemon that it is to have, as its configuration was understood when
    the claim came: a setting that changes later does not end a daemon that is used. `shared`: other
    claims may have other parts of the GPU, or of the MIG device; without `mps` they take turns.
    """

    result: Result
    gpu: str
    cdi_id: str
    profile: str = ""
    placement: Placement | None = None
    fixed: bool = False
    before: tuple[tuple[int, Placement], ...] | None = None
    instance: int | None = None
    compute: int | None = None
    uuid: str = ""
    mps: WantedMps | None = None
    shared: bool = False

    @property
    def device_uuid(self) -> str:
        """The UUID of the device itself; "" for a MIG device that is not known yet."""
        return self.gpu if self.placement is None else self.uuid

    @property
    def daemon(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that its MPS daemon serves, as wholes; the first is the primary."""
        if self.mps is None or self.placement is not None:
            return ()
        return self.mps.devices_on(self.gpu)

    @property
    def is_held(self) -> bool:
        """Return whether it is the claim's: no instance of the plan's, and not just looked at."""
        return not self.fixed and not self.result.admin_access

    @property
    def is_made(self) -> bool:
        """Return whether its instance comes with the claim, and goes with it."""
        return self.placement is not None and self.is_held

    def was_made_as(self, instance: GpuInstance) -> bool:
        """Return whether the instance was made for it in this run of the machine: ids recur."""
        if (self.profile, self.placement) != (instance.profile, instance.placement):
            return False
        if self.instance is not None:
            return self.instance == instance.id
        return self.before is not None and (instance.id, instance.placement) not in self.before

    def overlaps(self, other: ClaimedDevice) -> bool:
        """Return whether only one of them can be had; what an administrator has takes no place.
        Shares of a device do not overlap: their amounts are added up.
        """
        if self.result.admin_access or other.result.admin_access or self.gpu != other.gpu:
            return False
        return not self.shares_with(other) and self.lies_on(other.placement)

    def shares_with(self, other: ClaimedDevice) -> bool:
        """Return whether both are shares of one device."""
        places = [(one.gpu, one.profile, one.placement) for one in (self, other)]
        return self.shared and other.shared and places[0] == places[1]

    def lies_on(self, place: Placement | None) -> bool:
        """Return whether it has a part of that place on its GPU; None is the whole GPU."""
        if self.placement is None or place is None:
            return True
        return bool(self.placement.mask & place.mask)


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """What the agent keeps of one claim. `boot_id`: the start of the machine in which its ids
    count. `since`: when it came to be so, in seconds since 1970, 0: not known.
    """

    uid: str
    namespace: str
    name: str
    phase: RecordPhase
    boot_id: str
    devices: tuple[ClaimedDevice, ...]
    since: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        """Raise ValueError for a uid that makes no file name, and for a claim without devices."""
        if not UID.fullmatch(self.uid):
            raise ValueError(f"{self.uid[:80]!r} is not a uid of a claim")
        if not self.devices:
            raise ValueError("the claim has no devices")

    @property
    def title(self) -> str:
        """Its name for people, such as `claim team/trainer`."""
        return str(self.reference)

    @property
    def reference(self) -> ClaimReference:
        """The name by which it is found in the cluster."""
        return ClaimReference(self.namespace, self.name)

    @property
    def results(self) -> tuple[Result, ...]:
        return tuple(device.result for device in self.devices)

    def is_of(self, results: Iterable[Result]) -> bool:
        """Whether it is of this allocation of its claim, which keeps its uid when it is deallocated
        and allocated to other devices.
        """
        return frozenset(self.results) == frozenset(results)

    def held_on(self, gpu: str) -> tuple[ClaimedDevice, ...]:
        """Its own devices on the GPU with that UUID."""
        return tuple(device for device in self.devices if device.gpu == gpu and device.is_held)

    def consumed_of(self, device: ClaimedDevice) -> tuple[Consumed, ...]:
        """What its shares of what that one is a share of take."""
        here = (one.result.consumed for one in self.devices if one.shares_with(device))
        return tuple(consumed for consumed in here if consumed)

    def daemon_on(self, gpu: str) -> WantedMps | None:
        """What the claim wants of the MPS daemon that serves that GPU as a whole."""
        return next((device.mps for device in self.devices if gpu in device.daemon), None)

    @property
    def gpus(self) -> frozenset[str]:
        """UUIDs, also of those that it has nothing of beside its MPS daemon."""
        return frozenset(uuid for one in self.devices for uuid in (one.gpu, *one.daemon))


class ClaimState(StrEnum):
    """What the claim with a record's uid is at the API server."""

    SAME = "same"  # allocated as the record has it
    OTHER_RESULTS = "other results"
    DEALLOCATED = "deallocated"
    GONE = "gone"
    UNKNOWN = "unknown"


class Allocated(Struct, frozen=True):
    """A device that the kubelet gave to a container for a claim, from its pod-resources."""

    namespace: str
    claim: str
    pod: str
    key: tuple[str, str, str]  # as `Result.key`
    container: str = ""

    @property
    def in_pod(self) -> PodName:
        return PodName(self.namespace, self.pod)

    def __str__(self) -> str:
        return f"pod {self.in_pod}"


class FileState(StrEnum):
    """What a claim's CDI file is beside what it should be."""

    SAME = "same"
    DIFFERS = "differs"
    MISSING = "missing"
