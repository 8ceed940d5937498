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
# The recording rules read names alike. First a pod-template-hash or the minute of a CronJob.
_MADE: Final = re.compile(rf"(-{_RANDOM}{{8,10}}|-\d{{8,}})?-({_RANDOM}{{5}}|\d+)$")


def workload_of(pod: str) -> str:
    """The name of the workload that the pod is of, as its name shows it."""
    return _MADE.sub("", pod, count=1) or pod
