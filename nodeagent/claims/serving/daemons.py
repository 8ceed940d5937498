"""MPS daemons of claims: what a configuration makes of one, and what its clients get of it.

A claim's daemon is started, watched and ended as a plan's is. Two things differ: tenants may not
say all that a plan may (`configuration`), and clients get their place by the claim's CDI file.
Claims that have shares of one GPU have one daemon together, each with a kind of client of its own.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from nodeagent.claims.capacity import Consumed, capacity_of
from nodeagent.claims.model import ClaimReference, ClaimRefused, Result
from nodeagent.mps.files.directories import spec_in
from nodeagent.mps.setup import accounts_of
from nodeagent.mps.shares import DaemonSpec
from nodeagent.plan.desired import MpsEntry, ShareEntry, Shares
from nodeagent.plan.observed import Gpu, GpuInstanceProfile
from nodeagent.plan.problems import Code
from nodeagent.plan.resolve_mps import OnGpu, wanted_mps
from nodeagent.plan.shares import MIB, Host, Share, Slot, WantedMps, percentage_text
from nodeagent.structs import Struct, replace

# Of a share whose claim says nothing: the share's own limits.
_AS_IT_IS = MpsEntry("", Shares((ShareEntry("clients", None, None, None, ""),), ""))


class MpsEdits(Struct, frozen=True):
    """The place of a claim's containers in the MPS daemon of their device."""

    daemon: DaemonSpec
    slot: Slot


class ClaimDaemons(Struct, frozen=True):
    """Where no class names a user, MPS runs as `user`, else as `default_user`, which is never root.
    `run_dir` has the daemons' directories; with `private_shm` each device has its own /dev/shm.
    `poll` asks all daemons of the node who their clients are.
    """

    default_user: str
    run_dir: Path
    private_shm: bool
    poll: Callable[[], Awaitable[None]]
    user: str | None = None

    def wanted(
        self, entry: MpsEntry, gpu: Gpu, profile: GpuInstanceProfile | None, claim: ClaimReference
    ) -> WantedMps:
        """The daemon of the GPU, or of a MIG device of the `profile`, for the claim.

        Raises ClaimRefused where there can be none like it. May block on the user database.
        """
        entry = self._with_user(entry)
        on = self._on(gpu, entry)
        if profile is None:
            found = wanted_mps(on, entry, memory=gpu.memory)
        else:
            found = wanted_mps(
                on, entry, memory=profile.memory, device=profile.name, slices=profile.slices
            )
        return _without_problems(found, entry, on, claim)

    def wanted_share(
        self, result: Result, gpu: Gpu, profile: GpuInstanceProfile | None, claim: ClaimReference
    ) -> WantedMps:
        """What the daemon of the GPU, or of a MIG device of the `profile`, has to be for the claim,
        which has a share of it: its clients have what it consumes of memory and threads, or what
        its configuration has lower.

        Raises ClaimRefused where there can be none like it. May block on the user database.
        """
        share, written = result.consumed or Consumed(0), result.configuration
        entry = written if isinstance(written, MpsEntry) else _AS_IT_IS
        entry = self._with_user(entry)
        on = self._on(gpu, entry)
        found = _without_problems(wanted_mps(on, entry, memory=share.memory), entry, on, claim)
        one, *more = found.sharing.shares
        if more or one.count is not None:
            raise ClaimRefused.of("oneShare", claim=claim, gpu=gpu, path=entry.clients.path)
        threads = share.thread_limit(capacity_of(gpu, profile).memory)
        if one.threads is not None and one.threads > threads:
            found_threads, most = percentage_text(one.threads), percentage_text(threads)
            raise ClaimRefused.of(
                "tooManyThreads", claim=claim, gpu=gpu, one=one, found=found_threads, most=most
            )
        total = share.memory // MIB
        limits = Share(
            result.share_id, None, one.memory or total, one.threads or threads, one.path, total
        )
        return replace(found, sharing=replace(found.sharing, shares=(limits,)))

    def _with_user(self, entry: MpsEntry) -> MpsEntry:
        return replace(entry, user=self.user) if entry.user is None else entry

    def _on(self, gpu: Gpu, entry: MpsEntry) -> OnGpu:
        users = {self.default_user, entry.user or self.default_user}
        return OnGpu(gpu, Host(self.default_user, accounts_of(users)), [])

    def client(self, device: str, wanted: WantedMps) -> MpsEdits:
        """The place of the claim's containers in the daemon of `device` (a UUID).

        Raises PathRefused.
        """
        primary = wanted.devices_on(device)[0]
        spec = spec_in(self.run_dir, primary, wanted, private_shm=self.private_shm)
        return MpsEdits(spec, wanted.sharing.slots[0])


def _where(claim: ClaimReference) -> str:
    """In which object the configuration is written."""
    return (
        "it is written in spec.devices.config of the claim or its template, or in its DeviceClass "
        f"({claim.show} has it, with its source, in status.allocation.devices.config)"
    )


def _without_problems(
    found: WantedMps | None, entry: MpsEntry, on: OnGpu, claim: ClaimReference
) -> WantedMps:
    """For the claim; raises ClaimRefused with the first of the problems."""
    if found is None or on.problems:
        first = on.problems[0]
        message = ": ".join(filter(None, (str(claim), first.path, first.message)))
        if entry.user is None and (first.code, first.path) == (Code.INVALID_VALUE, entry.path):
            raise ClaimRefused.of("userOfSetting", what=message)
        raise ClaimRefused(message, remedy="; ".join(filter(None, (first.remedy, _where(claim)))))
    return replace(found, path=str(claim))
