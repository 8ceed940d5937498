"""What one control daemon has to be, and what each of its clients needs in its environment.

Pure.
"""

from __future__ import annotations

from nodeagent.plan import shares
from nodeagent.structs import Struct, replace

MEMORY_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
SLOT_VARIABLE = "NODEAGENT_MPS_SLOT"  # DEVICE/SLOT; not CUDA's: the slot that a client was given
SHM = "/dev/shm"  # noqa: S108  # where CUDA looks for the memory that it shares with the server
LOG_NAME = "daemon.log"  # what daemon and servers say; in the foreground they make no other
MAX_LIMIT = 2**24 - 1  # MiB; 16 TiB, far above any device and far below any overflow


class Limits(Struct, frozen=True):
    """The limits of memory in MiB by ordinal (None: unlimited) and of threads in percent."""

    memory: tuple[int | None, ...]
    threads: float


class DaemonSpec(Struct, frozen=True):
    """What the control daemon of a device (a UUID) has to be, and where its sockets are.

    With `private_shm` it has the device's own /dev/shm. One that serves several GPUs is kept as
    that of the first.
    """

    device: str
    wanted: shares.WantedMps
    pipe_directory: str
    private_shm: bool = False

    @property
    def devices(self) -> tuple[str, ...]:
        """All that it serves, in the order of their ordinals."""
        return self.wanted.devices_on(self.device)

    @property
    def account(self) -> shares.Account:
        return self.wanted.account

    @property
    def uid(self) -> int:
        return self.wanted.account.uid

    @property
    def multi_user(self) -> bool:
        """Whether its server runs as root and takes clients of every user."""
        return self.wanted.account.any_user

    @property
    def log_directory(self) -> str:
        return f"{self.directory}/log"

    @property
    def shm(self) -> str:
        """The directory that daemon, server and clients have as /dev/shm to share memory."""
        return f"{self.directory}/shm" if self.private_shm else SHM

    @property
    def directory(self) -> str:
        """The directory of all files of the device."""
        return self.pipe_directory.rpartition("/")[0]

    @property
    def limits(self) -> Limits:
        """The daemon's defaults. A client's own environment can only lower them, so they are the
        ceiling over all shares.
        """
        sharing = self.wanted.sharing
        return Limits(tuple(map(sharing.memory_ceiling, self.devices)), sharing.thread_ceiling)

    def needs_restart_for(self, wanted: DaemonSpec) -> bool:
        """Whether a daemon like this one cannot become `wanted` while it runs."""
        elsewhere = replace(self, wanted=wanted.wanted) != wanted
        return elsewhere or self.wanted.needs_restart_for(wanted.wanted)


def client_environment(spec: DaemonSpec, slot: shares.Slot) -> dict[str, str]:
    """What the client in this slot must have in its environment, pipe directory as on the node.

    Only forms that no driver misreads: whole MiB by ordinal, as the daemon counts its devices.
    Devices are made visible by UUID, since an index would be counted once more among those that
    the daemon has. Whether CUDA counts those of a client that has only some of them for itself is
    not documented: each ordinal gets the least of what it may mean. NVIDIA_VISIBLE_DEVICES is left
    out: it asks a container runtime for the GPU itself, and would undo the `void` where GPUs are
    given by other means.

    Raises ValueError for limits that a driver would take for others, or for none.
    """
    own = [device for device, *_ in slot.share.by_device]
    visible = [device for device in spec.devices if not own or device in own]
    environment = {
        "CUDA_MPS_PIPE_DIRECTORY": spec.pipe_directory,
        "CUDA_VISIBLE_DEVICES": ",".join(visible),
        SLOT_VARIABLE: f"{spec.device}/{slot.name}",
    }
    limits = []
    for ordinal, device in enumerate(spec.devices):
        meant = {device, *visible[ordinal : ordinal + 1]} & {*visible} or {device}
        found = [slot.share.memory_on(one) for one in meant]
        known = [limit for limit in found if limit is not None]
        if known:
            check_memory(min(known))
            limits.append(f"{ordinal}={min(known)}M")
    if limits:
        environment[MEMORY_VARIABLE] = ",".join(limits)
    if slot.share.threads is not None:
        check_percentage(slot.share.threads)
        environment[THREADS_VARIABLE] = shares.percentage_text(slot.share.threads)
    return environment


def check_number(what: str, value: int, least: int, most: int) -> None:
    """Raise ValueError unless it is a whole number in this range."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what} {value!r}: expected a whole number from {least} to {most}")


def check_memory(mebibytes: int) -> None:
    """Raise ValueError for a limit that no driver takes as it is meant."""
    check_number("MiB", mebibytes, 1, MAX_LIMIT)


def check_percentage(percent: float) -> None:
    """Raise ValueError beyond the range, or for more than two decimals, which would be cut off."""
    if type(percent) not in (int, float) or not shares.MIN_THREADS <= percent <= shares.ALL_THREADS:
        raise ValueError(
            f"percentage {percent!r}: expected a number from {shares.MIN_THREADS:g} "
            f"to {shares.ALL_THREADS:g}"
        )
    if float(shares.percentage_text(percent)) != percent:
        raise ValueError(f"percentage {percent!r}: expected at most two decimals")
