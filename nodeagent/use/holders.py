"""The workload of a pod, by the pod's name: for its owners the API server would have to be asked,
and accounts are kept without one, too.

A controller gives its pods names of its own with something behind them. Random letters are of an
alphabet without vowels, so that they are told from words; a pod whose name has none of it is its
own workload.
"""

from __future__ import annotations

import re
from typing import Final

_RANDOM: Final = "[bcdfghjklmnpqrstvwxz2456789]"
_MADE: Final = re.compile(
    rf"-{_RANDOM}{{6,10}}-{_RANDOM}{{5}}$"  # of a Deployment: pod-template-hash, then one of 5
    rf"|-\d+-{_RANDOM}{{5}}$"  # of a CronJob (its minute) or an indexed Job
    rf"|-{_RANDOM}{{5}}$"  # of a Job, ReplicaSet or DaemonSet
    r"|-\d+$"  # of a StatefulSet
)


def workload_of(pod: str) -> str:
    """The name of the workload that the pod is of, as its name shows it."""
    return _MADE.sub("", pod, count=1) or pod
