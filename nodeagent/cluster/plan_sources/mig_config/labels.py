"""The two node labels of the protocol, and what they hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

SOURCE: Final = "mig-config"  # the value of the setting plan.source
CONFIG: Final = "nvidia.com/mig.config"
STATE: Final = "nvidia.com/mig.config.state"

_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class MigState(StrEnum):
    """What the state label says.

    mig-manager knows `rebooting` too, which is never written here: this agent reboots no node.
    """

    PENDING = "pending"
    SUCCESS = "success"
    FAILED = "failed"


def wanted_name(labels: Mapping[str, str]) -> str:
    """The configuration that the node's label names; "" when it names none."""
    return labels.get(CONFIG, "")


def can_be_named(name: str) -> bool:
    """Whether a label can hold this name: some names in a file cannot be chosen by label."""
    return _VALUE.fullmatch(name) is not None
