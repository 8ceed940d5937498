"""A problem as a value that every surface shows alike."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, Self

from nodeagent.catalogue import filled, problem_words
from nodeagent.structs import Shape


class Code(StrEnum):
    """Machine-readable cause of a problem; its words are in the catalogue."""

    # the document
    SYNTAX = "Syntax"
    UNKNOWN_KEY = "UnknownKey"
    INVALID_VALUE = "InvalidValue"
    UNKNOWN_DEVICE = "UnknownDevice"
    DUPLICATE_DEVICE = "DuplicateDevice"
    UNKNOWN_PROFILE = "UnknownProfile"
    UNKNOWN_CONFIGURATION = "UnknownConfiguration"
    # the card
    NOT_MIG_CAPABLE = "NotMigCapable"
    DOES_NOT_FIT = "DoesNotFit"
    UNSUPPORTED = "Unsupported"
    # the moment
    IN_USE = "InUse"
    RESET_REQUIRED = "ResetRequired"
    GPU_UNKNOWN = "GpuUnknown"
    GPU_LOST = "GpuLost"
    GPU_UNHEALTHY = "GpuUnhealthy"  # nothing new is placed on unhealthy parts
    STEP_FAILED = "StepFailed"
    NOT_RESTORED = "NotRestored"
    DRIFT = "Drift"
    MPS = "Mps"
    MPS_CLIENT = "MpsClient"  # of a client's own making; the node is as planned all the same
    DRIVER = "Driver"
    DRIVER_MISSING = "DriverMissing"  # its library is not there
    READER = "Reader"  # something cannot be read, so that its values are missing
    METRICS = "Metrics"  # some of what was asked for is not exported; nothing else is the matter
    # the agent itself
    STARVED = "Starved"  # it gets too little processor time
    NO_EFFECT = "NoEffect"  # something is set that has no effect
    SOURCE_MISSING = "SourceMissing"  # the file that should hold the plan is not there
    RUN_DIRECTORY = "RunDirectory"  # it was deleted under the agent, or cannot be written
    STATE_FILE = "StateFile"  # a file of its own state cannot be used or written
    # the cluster
    OWNED = "Owned"  # another program splits the node's GPUs, too
    NOT_OFFERED = "NotOffered"  # the node does not offer to pods what its GPUs are
    CONTESTED = "Contested"  # another program overwrites what this agent writes on the Node
    UNGUARDED = "Unguarded"  # no admission policy limits what the agent's account may change
    CLUSTER = "Cluster"  # a change cannot be announced to the API server, which comes first


class Explained(Protocol):
    """What went wrong and what would be right, such as a `NodeagentError`."""

    @property
    def message(self) -> str: ...

    @property
    def remedy(self) -> str: ...


class Problem(Shape, frozen=True, kw_only=True):
    """One obstacle: `gpu` is a UUID ("" for the node), `path` a place in the document. `code` is a
    `Code`, or of a refused claim one of `claims.reporting.attempts`.
    """

    code: str
    gpu: str = ""
    path: str = ""
    message: str
    remedy: str = ""

    @classmethod
    def of(
        cls, code: Code, case: str = "", *, gpu: str = "", path: str = "", **facts: object
    ) -> Self:
        """The problem in the words of the catalogue; `case` is one of those of its code."""
        words = problem_words(code, case)
        return cls(
            code=code,
            gpu=gpu,
            path=path,
            message=filled(words.message, facts),
            remedy=filled(words.remedy, facts),
        )

    @classmethod
    def from_error(cls, code: str, error: Explained, *, gpu: str = "", path: str = "") -> Self:
        """An error that stands in the way, in its own words: those of what failed."""
        return cls(code=code, gpu=gpu, path=path, message=error.message, remedy=error.remedy)


class PlanRefused(Exception):
    """What is desired cannot be, or not now; `problems` say why."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*(problem.message for problem in problems))
        self.problems = problems
