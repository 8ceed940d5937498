"""What each holder did with each kind of device: times, and spreads of seconds over values."""

from nodeagent.structs import Struct


class Spread(Struct, frozen=True):
    """Of seconds over a value. Percentiles are upper edges of bins, the peak is exact."""

    p50: float
    p95: float
    peak: float


class Holder(Struct, frozen=True):
    """Whose time it is. `kind`: workload (whose name is that of its pods without what was made for
    each of them), unit, user, or container (outside Kubernetes, by its id).
    """

    kind: str
    name: str
    namespace: str = ""
    container: str = ""


class Use(Struct, frozen=True):
    """What a holder did with a kind of device: a MIG profile, `gpu`, or `share` for a part of one.

    Granted are bytes, and percent of the multiprocessors (None: not limited). `model`: the card's.
    `held` and `used` are seconds of the device. Idle stretches are of a minute and more.
    `at_limit`: seconds with its memory full. Spreads are None where it was not measured.
    """

    holder: Holder
    device: str
    model: str
    granted_memory: int
    granted_threads: float | None
    held: float = 0.0
    used: float = 0.0
    idle_stretches: int = 0
    longest_idle: float = 0.0
    memory: Spread | None = None
    engine: Spread | None = None
    sm: Spread | None = None
    dram: Spread | None = None
    at_limit: float = 0.0
