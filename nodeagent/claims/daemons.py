"""MPS daemons of claims: what a configuration makes of one, and what its clients get of it.

A claim's daemon is started, watched and ended as a plan's is. Two things differ: tenants may not
say all that a plan may (`configuration`), and clients get their place by the claim's CDI file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from nodeagent.claims.allocation import ClaimRefused
from nodeagent.claims.cdi import MpsClient
from nodeagent.mps.accounts import accounts_of
from nodeagent.mps.files.directories import directories_of
from nodeagent.mps.launch.launcher import shm_directory
from nodeagent.mps.shares import spec_for
from nodeagent.plan.desired import MpsEntry
from nodeagent.plan.observed import Gpu, GpuInstanceProfile
from nodeagent.plan.resolve_mps import OnGpu, wanted_mps
from nodeagent.plan.shares import Host, WantedMps
from nodeagent.structs import replace


@dataclass(frozen=True, slots=True)
class ClaimDaemons:
    """`default_user` runs MPS where no class names a user. `run_dir` has the daemons' directories;
    with `private_shm` each device has a /dev/shm of its own. `poll` asks all daemons of the node
    who their clients are.
    """

    default_user: str
    run_dir: Path
    private_shm: bool
    poll: Callable[[], Awaitable[None]]

    def wanted(
        self, entry: MpsEntry, gpu: Gpu, profile: GpuInstanceProfile | None, title: str
    ) -> WantedMps:
        """The daemon of the GPU, or of a MIG device of the `profile`, for the claim of that title.

        Raises ClaimRefused where there can be none like it. May block on the user database.
        """
        users = {self.default_user, entry.user or self.default_user}
        on = OnGpu(gpu, Host(self.default_user, accounts_of(users)), [])
        if profile is None:
            found = wanted_mps(on, entry, memory=gpu.memory)
        else:
            found = wanted_mps(
                on, entry, memory=profile.memory, device=profile.name, slices=profile.slices
            )
        if found is None or on.problems:
            first = on.problems[0]
            raise ClaimRefused(f"{title}: {first.path}: {first.message}", remedy=first.remedy)
        return replace(found, path=title)

    def client(self, device: str, wanted: WantedMps) -> MpsClient:
        """The place of the claim's containers in the daemon of `device` (a UUID).

        Raises PathRefused.
        """
        places = directories_of(self.run_dir, device)
        spec = spec_for(wanted, device, pipe_directory=places.pipe, log_directory=places.log)
        shm = shm_directory(spec, private=self.private_shm)
        return MpsClient(spec, wanted.sharing.slots[0], str(shm))
