"""What the agent knows and says about its node at one moment, as a value.

Every surface (HTTP, the status command, systemd's status line, readiness) reads the same value;
only the reconciler makes new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import Struct, field
from nodeagent.views.claims import Claim, FreeShare
from nodeagent.views.mps import not_ready_reasons, on_its_way
from nodeagent.views.shapes import Cluster, MpsDaemon, Refused, RunsAs

if TYPE_CHECKING:  # it takes long to import, and not every state has it
    from nodeagent.health.state import HealthState


class Phase(StrEnum):
    """The node in one word."""

    IN_SYNC = "InSync"
    WORKING = "Working"
    BLOCKED = "Blocked"
    REJECTED = "Rejected"
    FAILED = "Failed"
    NO_PLAN = "NoPlan"  # nothing was ever asked for; the GPUs are left as they are


# What waits for others is blocked; everything else that remains is a failure.
WAITING = frozenset(
    {Code.IN_USE, Code.RESET_REQUIRED, Code.GPU_UNHEALTHY, Code.OWNED, Code.CLUSTER}
)
# What a client of MPS does wrong, a metric that is not exported, a setting that has no effect, a
# command after a change, a lost file of the agent's own or too little processor time leaves the
# node as planned.
SHOWN_ONLY = frozenset((
    *(Code.MPS_CLIENT, Code.METRICS, Code.READER, Code.STARVED, Code.NO_EFFECT),
    *(Code.AFTER_CHANGE, Code.STATE_FILE, Code.RUN_DIRECTORY, Code.SOURCE_MISSING),
    *(Code.CONTESTED, Code.UNGUARDED),
))  # fmt: skip


_NOTHING_SEEN = ObservedNode()
FOR_CLAIMS = "no plan: the GPUs are for claims"


CLOCK_REASONS = (  # why clocks are lower just now, by the number of NVML's bit
    *("gpu_idle", "clocks_setting", "power_cap", "hw_slowdown", "sync_boost", "sw_thermal"),
    *("hw_thermal", "hw_power_brake", "display_clocks"),
)


class Reading(Struct, frozen=True):
    """What was sampled last of a GPU or a GPU instance; None: not read.

    `utilization` in percent, temperatures in degrees Celsius, powers in watts, `memory`: bytes
    used, clocks in MHz, `clock_reasons`: bits of CLOCK_REASONS, ECC errors since the driver's load,
    what is `active` in percent of the time.
    """

    utilization: float | None = None
    temperature: float | None = None
    power: float | None = None
    memory: int | None = None
    slowdown_temperature: float | None = None
    power_limit: float | None = None
    sm_clock: float | None = None
    memory_clock: float | None = None
    clock_reasons: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    sm_active: float | None = None
    dram_active: float | None = None


class NodeState(Struct, frozen=True):
    """The node as the agent sees it.

    `digest` and `configuration` are those of the plan in force. `plan` holds what remains to be
    done for it. `problems` are the driver's, the refused document's, the GPUs' and the agent's own,
    in that order. `blocking` are the codes of those that keep the plan in force from being done,
    which none of the agent's own does: not those of its files, its settings, or claims.
    `note` is one sentence about the plan's carrier, empty when all is well. `driver_error` is
    empty while the GPUs can be read. `rounds` counts the reconciliations that were finished. `mps`
    are the node's MPS daemons. `cluster` is None for a node without one, `health` where it is not
    watched, `claims` where none are served. `less_offered`: why GPUs offer less to claims than they
    could; `free_shares`, by UUID, what is left of those that they share. `readings` are by the UUID
    of the GPU and the id of the GPU instance, None for the GPU as a whole. `started_at`: the agent.
    """

    node: str
    source: str
    phase: Phase = Phase.WORKING
    digest: str = ""
    configuration: str | None = None
    refusal: Refused | None = None
    note: str = ""
    observed: ObservedNode = _NOTHING_SEEN
    observed_at: datetime | None = None
    plan: NodePlan | None = None
    problems: tuple[Problem, ...] = ()
    blocking: frozenset[str] = frozenset()
    driver_error: str = ""
    rounds: int = 0
    mps: tuple[MpsDaemon, ...] = ()
    cluster: Cluster | None = None
    health: HealthState | None = None
    claims: tuple[Claim, ...] | None = None
    less_offered: tuple[Problem, ...] = ()
    free_shares: Mapping[str, FreeShare] = field(default_factory=dict)
    readings: Mapping[tuple[str, int | None], Reading] = field(default_factory=dict)
    started_at: datetime | None = None
    runs_as: RunsAs = ""

    @property
    def unread(self) -> str:
        """Why nothing new is known of the GPUs; empty while it is. A fault of the agent's own, such
        as too little memory, is not the driver's.
        """
        error = self.driver_error
        problem = next((one for one in self.problems if one.message == error), None)
        of_driver = problem is None or problem.code in {Code.DRIVER, Code.DRIVER_MISSING}
        return f"the driver does not answer: {error}" if error and of_driver else error

    @property
    def sentence(self) -> str:
        """The state in one line for people."""
        if self.phase is Phase.NO_PLAN:
            return self.note or "no plan yet" if self.claims is None else FOR_CLAIMS
        if self.phase is Phase.IN_SYNC:
            return f"the node is as the plan says{f'; {self.note}' if self.note else ''}"
        if self.problems:
            more = len(self.problems) - 1
            return self.problems[0].message + (f" (and {more} more)" if more else "")
        return "working" if self.phase is Phase.WORKING else str(self.phase)


def blocking_codes(problems: Iterable[Problem]) -> frozenset[str]:
    """The codes of those problems with which a node is not as planned."""
    return frozenset(problem.code for problem in problems) - SHOWN_ONLY


def phase_of(
    *,
    refused: bool,
    plan: NodePlan | None,
    problems: Iterable[Problem],
    mps: Iterable[MpsDaemon] = (),
) -> Phase:
    """The phase at the end of a round, when nothing more is done before the next.

    `problems` are those of the plan in force, those of MPS among them; `plan` is None when there is
    none. A refused document comes first, because its author waits for an answer; then what needs a
    person; then what only needs time, such as a daemon of `mps` that is being started.
    """
    if refused:
        return Phase.REJECTED
    if plan is None:
        return Phase.NO_PLAN
    codes = blocking_codes(problems)
    if codes - WAITING:
        return Phase.FAILED
    if codes or plan.verdict is Verdict.BLOCKED:
        return Phase.BLOCKED
    if plan.verdict is not Verdict.IN_SYNC:
        return Phase.FAILED
    return Phase.WORKING if on_its_way(mps) else Phase.IN_SYNC


def not_ready(state: NodeState) -> tuple[str, ...]:
    """Why the agent is not ready, each reason a sentence; empty when it is."""
    reasons = []
    if state.unread:
        reasons.append(state.unread)
    if not state.rounds:
        reasons.append("the first reconciliation is not done yet")
    return (*reasons, *not_ready_reasons(state.mps, state.observed))
