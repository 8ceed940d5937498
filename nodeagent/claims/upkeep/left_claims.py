"""What claims have where none are served: `dra.mode` was switched off, or the agent is stopped.

A pod may have a slice that no process uses at the moment. So what the records of claims have is
left alone wherever a plan is carried out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nodeagent.claims.files.records import UnreadableRecord, read_records
from nodeagent.claims.model import ClaimRecord
from nodeagent.claims.offering.planned import beside_records
from nodeagent.gpu.kernel import boot_id
from nodeagent.plan.desired import DesiredGpu
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.text import listed


@dataclass(frozen=True, slots=True)
class LeftClaims:
    """`records` are those of this start of the machine: nothing that was made for a claim outlives
    it. Those that are `unreadable` hold back their GPUs.
    """

    records: tuple[ClaimRecord, ...]
    unreadable: tuple[UnreadableRecord, ...]

    def beside(self, goal: DesiredGpu, gpu: Gpu) -> DesiredGpu:
        """A plan's goal of the GPU beside what claims have there."""
        return beside_records(goal, gpu, self.records, self.unreadable)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """That there are claims, which nothing releases."""
        problems = [Problem.from_error(Code.STATE_FILE, u) for u in self.unreadable]
        if self.records:
            titles = listed([record.title for record in self.records])
            problems.append(Problem.of(Code.IN_USE, "claimsLeft", claims=titles))
        return tuple(problems)


def left_claims(folder: Path) -> LeftClaims:
    """Those with records in the folder. Raises NodeagentError where it is not known which start of
    the machine this is. Blocks on the disk.
    """
    found = read_records(folder)
    records = [one for one in found if isinstance(one, ClaimRecord)]
    now = boot_id() if records else ""
    return LeftClaims(
        tuple(one for one in records if one.boot_id == now),
        tuple(one for one in found if isinstance(one, UnreadableRecord)),
    )
