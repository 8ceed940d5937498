"""What each holder did with each kind of device: times, and spreads of seconds over values."""

import re
from typing import Final

from nodeagent.structs import Struct, replace

PodKey = tuple[str, str]  # namespace and name

_RANDOM: Final = "[bcdfghjklmnpqrstvwxz2456789]"  # without vowels, unlike words
# The recording rules read names alike. First a pod-template-hash or the minute of a CronJob.
_MADE: Final = re.compile(rf"(-{_RANDOM}{{8,10}}|-\d{{8,}})?-({_RANDOM}{{5}}|\d+)$")


class Spread(Struct, frozen=True):
    """Of the seconds in which it was measured over a value. Percentiles are upper edges of bins,
    the peak is exact.
    """

    p50: float
    p95: float
    peak: float
    seconds: float = 0.0


class Holder(Struct, frozen=True):
    """Whose time it is. `kind`: workload (by the name of what controls its pods), pod (whose
    workload is not known yet), unit, user, or container (outside Kubernetes, by its id).
    """

    kind: str
    name: str
    namespace: str = ""
    container: str = ""

    @property
    def pod(self) -> PodKey:
        return self.namespace, self.name

    def named(self, workload: str) -> "Holder":
        """In place of a pod its workload; "": by the pod's name without what was made for it."""
        name = workload or _MADE.sub("", self.name) or self.name
        return replace(self, kind="workload", name=name) if self.kind == "pod" else self


class Grant(Struct, frozen=True):
    """What a holder was given: a kind of device (a MIG profile, `gpu`, or `share` for a part of
    one) of a card of this model, bytes, and percent of the multiprocessors (None: not limited).
    """

    device: str
    model: str
    memory: int
    threads: float | None = None


class Use(Struct, frozen=True):
    """What a holder did with what it was granted: `held` and `used` are seconds of the device,
    idle stretches of a minute and more, `at_limit` seconds with its memory full. None: it was
    never measured.
    """

    holder: Holder
    grant: Grant
    held: float = 0.0
    used: float | None = None
    at_limit: float = 0.0
    idle_stretches: int = 0
    longest_idle: float = 0.0
    memory: Spread | None = None
    engine: Spread | None = None
    sm: Spread | None = None
    dram: Spread | None = None
