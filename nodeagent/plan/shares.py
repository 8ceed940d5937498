"""How one device is shared among MPS clients, and as which user: what a plan's `mps` means.

Limits are in what the control daemon can express: whole MiB, percent with two decimals. The bounds
of fields are checked where a value is read from a state file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from nodeagent.structs import Meta, Struct, field

MIB = 1024**2
ALL_THREADS = 100.0
MAX_DEVICES = 32  # of one daemon; it takes limits for ordinals beyond, too, and has none there
_LEAST = 1  # MiB on a device that a client is not given; a daemon has no way to express none
MIN_THREADS = 0.1  # percent; the daemon reads back one decimal, below it everything is 0.0


class TimeSlice(StrEnum):
    """How long a process has the GPU before the next one's turn; as the plan writes it."""

    DEFAULT = "default"
    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


class ComputeMode(StrEnum):
    """Who may have a context on a device (NVML's nvmlComputeMode_t)."""

    DEFAULT = "default"
    EXCLUSIVE_THREAD = "exclusiveThread"  # no driver of today knows it any more
    PROHIBITED = "prohibited"
    EXCLUSIVE_PROCESS = "exclusiveProcess"


class _OfPlan(Struct, frozen=True):
    """What has a `path`, its place in the plan: equal things are equal wherever a plan has them."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OfPlan) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def _compared(self) -> tuple[object, ...]:
        fields = (name for name in self.__struct_fields__ if name != "path")
        return type(self), *(getattr(self, name) for name in fields)


class Share(_OfPlan, frozen=True):
    """One kind of client: `count` of them (None: however many come), each with these limits.

    `memory` is in whole MiB and `threads` in percent, at most two decimals; None: no limit of
    its own. `total`: the MiB that all its clients may have together, which MPS does not enforce;
    None: no limit, as of a plan's. `path` leads to its place in the plan. `by_device`: where its
    clients are given some devices of the daemon, or different amounts, these (UUIDs), each with
    `memory` and `total`.
    """

    name: str
    count: Annotated[int, Meta(ge=0)] | None
    memory: Annotated[int, Meta(ge=0)] | None
    threads: Annotated[float, Meta(gt=0, le=ALL_THREADS)] | None
    path: str = ""
    total: Annotated[int, Meta(ge=0)] | None = None
    by_device: tuple[tuple[str, Annotated[int, Meta(ge=1)], int | None], ...] = ()

    def memory_on(self, device: str) -> int | None:
        """The MiB that a client may have on this device (a UUID); None: no limit."""
        given = {one: memory for one, memory, _ in self.by_device}
        return given.get(device, _LEAST) if given else self.memory

    def total_on(self, device: str) -> int | None:
        """The MiB that all its clients may have together on this device; None: no limit."""
        given = {one: total for one, _, total in self.by_device}
        return given.get(device) if given else self.total

    @property
    def slots(self) -> tuple[Slot, ...]:
        """A share for any number of clients has one slot, which all of them take."""
        return tuple(Slot(f"{self.name}-{number}", self) for number in range(self.count or 1))


class Slot(Struct, frozen=True):
    """The place of one client, under a name that is unique on its device (`small-0`)."""

    name: str
    share: Share


class Sharing(Struct, frozen=True):
    """How one device is shared. `enforce` is `report` or `terminate`."""

    shares: Annotated[tuple[Share, ...], Meta(min_length=1)]
    enforce: str

    @property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(slot for share in self.shares for slot in share.slots)

    @property
    def of_claims(self) -> bool:
        """Whether claims have the shares."""
        return any(share.total is not None or share.by_device for share in self.shares)

    def memory_ceiling(self, device: str) -> int | None:
        """The most MiB any client may have on the device; None when some share has no limit."""
        limits = [share.memory_on(device) for share in self.shares]
        known = [limit for limit in limits if limit is not None]
        return max(known) if len(known) == len(limits) else None

    @property
    def thread_ceiling(self) -> float:
        return max(ALL_THREADS if s.threads is None else s.threads for s in self.shares)


class Account(Struct, frozen=True):
    """Whom a daemon, its servers and its clients run as.

    With `any_user` one server takes clients of every user, for which it has to run as root.
    """

    uid: Annotated[int, Meta(ge=0)]
    gid: Annotated[int, Meta(ge=0)]
    groups: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    any_user: bool = False


class WantedMps(_OfPlan, frozen=True):
    """What one device's control daemon has to be, whichever device that is.

    `devices`: the GPUs (UUIDs) that it serves together, in the order of their ordinals; it is that
    of the first, its primary. (): it has one device.
    """

    sharing: Sharing
    account: Account
    path: str = ""
    devices: tuple[str, ...] = ()

    def devices_on(self, device: str) -> tuple[str, ...]:
        """All that it serves, as the daemon of `device`."""
        return self.devices or (device,)

    def is_served_elsewhere(self, device: str) -> bool:
        """Whether it is not the daemon of `device` itself, which it serves."""
        return self.devices_on(device)[0] != device

    def needs_restart_for(self, wanted: WantedMps) -> bool:
        """Whether a daemon like this one cannot become `wanted` while it runs.

        It cannot lose a memory limit: no command of the control daemon does that safely.
        """
        has, shall = self.sharing.memory_ceiling, wanted.sharing.memory_ceiling
        freed = any(has(d) is not None and shall(d) is None for d in self.devices_on(""))
        return freed or (self.account, self.devices) != (wanted.account, wanted.devices)


# --- as text --------------------------------------------------------------------------------------


def percentage_text(percent: float) -> str:
    """Write a percentage with at most two decimals, no more than needed: `25`, `33.33`."""
    return f"{percent:.2f}".rstrip("0").rstrip(".")


def written_bytes(amount: int) -> str:
    """Write bytes as GiB where they are whole, else as MiB rounded down: `8Gi`, `81559Mi`."""
    if amount % 1024**3 == 0:
        return f"{amount // 1024**3}Gi"
    return f"{amount // MIB}Mi" if amount >= MIB else f"{amount} bytes"


_IDS = r"([0-9]{1,10})(?::([0-9]{1,10}))?"

ANY_USER = "any"  # as `user`: a server that takes clients of every user, and so runs as root


def user_ids(user: str) -> tuple[int, int] | None:
    """Uid and gid of `1000:100`, or of `1000`, whose gid is the uid; None for a user's name."""
    match = re.fullmatch(_IDS, user)
    return (int(match[1]), int(match[2] or match[1])) if match else None


class Host(Struct, frozen=True):
    """The accounts that MPS can run as on this host. Without a user in the plan it runs as
    `default_user`. `accounts` are those looked up, by the text of `user` (`1000`, `1000:1000`,
    `alice`); a name that is missing is unknown to the host, a uid that is missing is its gid too.
    """

    default_user: str = "1000"
    accounts: Mapping[str, Account] = field(default_factory=dict)
