"""What claims have of the GPUs, for all who plan: of those that are served, or that were once.

An agent without claims imports nothing of them, unless there are records.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.plan.desired import DesiredGpu
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Problem

if TYPE_CHECKING:
    from nodeagent.app.claims_service import ClaimsService
    from nodeagent.claims.upkeep.left_claims import LeftClaims


class KeptClaims:
    """Those that `served` serves; where it is None, what is left in `folder`. `load` before
    anything is planned.
    """

    def __init__(self, served: ClaimsService | None, folder: Path) -> None:
        self._served = served
        self._folder = folder
        self._left: LeftClaims | None = None

    async def load(self) -> None:
        """Read the records. Raises NodeagentError."""
        if self._served:
            await self._served.load()
        elif await asyncio.to_thread(self._folder.is_dir):
            from nodeagent.claims.upkeep.left_claims import left_claims

            self._left = await asyncio.to_thread(left_claims, self._folder)

    def beside(self, goal: DesiredGpu, gpu: Gpu) -> DesiredGpu:
        """A plan's goal of the GPU beside what claims have there."""
        claims = self._served or self._left
        return claims.beside(goal, gpu) if claims else goal

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why claims get less than they could, or that they are not served."""
        claims = self._served or self._left
        return claims.problems if claims else ()
