"""What a plan source has to say (a text, that there is none, or that it cannot be read), and the
last plan that was accepted, kept where it survives a restart.

When the agent starts and finds no plan in the source, or none that can be used, the plan kept is
in force. Only root may read it: a plan can name users and limits of other people. The file is
itself a plan that `nodeagent plan -f` reads: what the agent adds are comments.
"""

from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from msgspec import json

from nodeagent.files.state import StateFile, StateFormat
from nodeagent.plan.numbers import Numbers
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.problems import Problem
from nodeagent.structs import Struct


class PlanText(Struct, frozen=True):
    """A document as found; `configuration` names the one meant in an nvidia-mig-parted file."""

    text: bytes
    configuration: str | None = None


class KeptPlan(Struct, frozen=True):
    """A plan that was accepted, and which GPUs its numbers stand for."""

    plan: PlanText
    numbers: Numbers = ()


class NoPlan(Struct, frozen=True):
    """The source holds no plan; `reason` is a sentence, such as that the file is not there.

    `problem` is set where a plan is required, and None where it is optional.
    """

    reason: str
    problem: Problem | None = None


class UnreadablePlan(Struct, frozen=True):
    """The source holds something that cannot be read."""

    problem: Problem


PlanUpdate = PlanText | NoPlan | UnreadablePlan


@runtime_checkable
class DeferredPlan(Protocol):
    """A request whose plan depends on the node's GPUs. A value: equal ones request the same."""

    def on(self, observed: ObservedNode) -> PlanUpdate:
        """The plan for this node. Pure, and called in a thread, since it may take long."""
        ...


FILE_NAME: Final = "last-good-plan"
_MAX_SIZE = 2 * 1024 * 1024  # bytes, more than any document that was ever accepted
_CONFIGURATION = b"# configuration: "
_NUMBERS = b"# gpus: "


def last_good_plan(path: Path | None) -> StateFile[KeptPlan]:
    """The file; `path` None: nothing is kept."""
    return StateFile(path, _FORMAT)


def _encoded(kept: KeptPlan) -> bytes:
    named = _CONFIGURATION + json.encode(kept.plan.configuration)
    numbers = _NUMBERS + json.encode(kept.numbers)
    return b"\n".join((named, numbers, kept.plan.text))


def _decoded(content: bytes) -> KeptPlan:
    first, _, rest = content.partition(b"\n")
    second, _, text = rest.partition(b"\n")
    name = json.decode(first.removeprefix(_CONFIGURATION), type=str | None)
    numbers = json.decode(second.removeprefix(_NUMBERS), type=Numbers)
    return KeptPlan(PlanText(text, name), numbers)


_FORMAT: Final[StateFormat[KeptPlan]] = StateFormat(
    "last-good-plan", 1, _MAX_SIZE, _encoded, _decoded
)
