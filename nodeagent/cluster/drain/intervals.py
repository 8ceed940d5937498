"""The times of a drain."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DrainIntervals:
    """Times in seconds; pairs are the shortest and the longest wait of a backoff.

    `round_answer`: how long a round of the loop waits for the list of pods, and `list_age`: how
    old that may be; `answer`: how long the API server may take elsewhere. `notify`: how long a
    change of the Node is tried before work. `prepare`: between two attempts at a change that could
    not be prepared; `restore`: at what could not be put back; `evict`: at evictions that were
    refused, or did not help. `leaving_pods`: between two looks at paused clients that are to go,
    `first_look`: the first at evicted pods, then a tenth of the time that they take.
    """

    round_answer: float = 3.0
    list_age: float = 5.0
    answer: float = 10.0
    notify: float = 10.0
    prepare: tuple[float, float] = (10.0, 600.0)
    restore: tuple[float, float] = (1.0, 60.0)
    evict: tuple[float, float] = (5.0, 60.0)
    leaving_pods: tuple[float, float] = (0.5, 5.0)
    first_look: float = 0.5
