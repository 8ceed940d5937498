"""What the claims of a node act through, and where they are kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nodeagent.plan.desired import DesiredGpu
from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import GpuOutcome


class Change(Protocol):
    """Makes of the GPU with this UUID what `goal` wants of it, and reads it back. `adds` and
    `removes`: that is as a rule a new instance or one less and nothing else, so that less has to be
    read; `goal` may be called twice then.
    """

    def __call__(
        self,
        uuid: str,
        goal: Callable[[Gpu], Awaitable[DesiredGpu]],
        *,
        adds: bool = False,
        removes: bool = False,
    ) -> Awaitable[GpuOutcome]: ...


Fetch = Callable[[str, str], Awaitable[object | None]]
"""The ResourceClaim of this namespace and name, None where there is none."""


@dataclass(frozen=True, slots=True)
class ClaimPlaces:
    """Where claims are kept and published. `boot_id`: this start of the machine."""

    node: str
    boot_id: str
    records: Path
    cdi_dir: Path
