"""What one control daemon has to be, and what each of its clients needs in its environment.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.planning.shares import Share, WantedMps, percentage_text


@dataclass(frozen=True, slots=True)
class DaemonSpec:
    """What one control daemon has to be: for one device, as one user, with these defaults.

    A client's own environment can only lower the limits, so the daemon's defaults are the
    ceiling over all shares: `memory_limit` in MiB (None: unlimited), `thread_percentage` in
    percent. With `multi_user` the server runs as root and takes clients of every user.
    """

    device: str
    uid: int
    gid: int
    pipe_directory: str
    log_directory: str
    memory_limit: int | None
    thread_percentage: float
    groups: tuple[int, ...] = ()
    multi_user: bool = False

    def needs_restart_for(self, wanted: DaemonSpec) -> bool:
        """Whether a daemon that is so cannot become `wanted` while it runs.

        Taking a memory limit away is among it: the command has no form for that which is safe.
        """
        if self.memory_limit is not None and wanted.memory_limit is None:
            return True
        return self.identity != wanted.identity

    @property
    def identity(self) -> tuple[object, ...]:
        """All but the limits: what is fixed when the process starts."""
        return (
            self.device,
            self.uid,
            self.gid,
            self.groups,
            self.multi_user,
            self.pipe_directory,
            self.log_directory,
        )


def spec_for(
    wanted: WantedMps, device: str, *, pipe_directory: str, log_directory: str
) -> DaemonSpec:
    """The daemon of `device` (a UUID) that makes `wanted` so."""
    account = wanted.account
    return DaemonSpec(
        device=device,
        uid=account.uid,
        gid=account.gid,
        groups=account.groups,
        multi_user=account.any_user,
        pipe_directory=pipe_directory,
        log_directory=log_directory,
        memory_limit=wanted.sharing.memory_ceiling,
        thread_percentage=wanted.sharing.thread_ceiling,
    )


def client_environment(spec: DaemonSpec, share: Share) -> dict[str, str]:
    """What a client of this share must have in its environment, pipe directory as on the node.

    The device is 0 whatever it is on the node, because each daemon has only the one.
    """
    environment = {"CUDA_MPS_PIPE_DIRECTORY": spec.pipe_directory}
    if share.memory is not None:
        environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={share.memory}M"
    if share.threads is not None:
        environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = percentage_text(share.threads)
    return environment
