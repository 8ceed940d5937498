"""What one reading shows of one cause, before any damping."""

from collections.abc import Callable, Iterator

from nodeagent.health.findings import Action, Severity
from nodeagent.health.readings import GpuReading
from nodeagent.health.state import GpuHistory, Trail
from nodeagent.structs import Struct


class Observation(Struct, frozen=True):
    """A cause that a check looked for. `present` None: not known this time, so nothing changes.

    `severity` and `action` are those of the cause's row unless given. `unsure`: without a finding,
    nothing shows that what its check looks at is well.
    """

    cause: str
    present: bool | None
    evidence: str = ""
    instance: int | None = None
    parts: tuple[int, ...] = ()
    severity: Severity | None = None
    action: Action | None = None
    unsure: bool = False


class GpuView(Struct, frozen=True):
    """The input of a GPU's check: the reading, and the past with this reading's trails.

    `raised` holds the causes that are raised just now; a band's lower limit counts for them. `like`
    are the node's other GPUs of the same model, `switched` whether NVLinks of any of them lead to
    switches.
    """

    gpu: GpuReading
    past: GpuHistory
    uptime: float
    raised: frozenset[str] = frozenset()
    like: tuple[GpuHistory, ...] = ()
    switched: bool = False

    def trail(self, name: str) -> Trail:
        return self.past.trails.get(name, Trail())

    def above(self, cause: str, value: float | None, band: tuple[float, float]) -> bool | None:
        """Whether `value` is at or above the first limit, or the second one while it is raised."""
        if value is None:
            return None
        raise_at, clear_below = band
        return value >= (clear_below if cause in self.raised else raise_at)

    @property
    def no_recovery(self) -> bool:
        return self.past.recovery is not None and self.past.recovery[0] == 0


GpuCheck = Callable[[GpuView], Iterator[Observation]]
