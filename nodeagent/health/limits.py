"""Every threshold, window and delay of the checks, with its unit. Others' choices unless said.

None of these numbers was measured on a GPU. DCGM's and gpud's are those of their health checks; the
rest are this program's own choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

# Replays a minute and lane that DCGM bears, by the generation of the link.
_REPLAYS = MappingProxyType({1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84})


@dataclass(frozen=True, slots=True)
class Limits:
    """A value at or above `..._raise` raises a finding; it ends below `..._clear`."""

    # memory
    remapped_uncorrectable: int = 512  # rows (DCGM)
    retired_pages: int = 63  # pages: the hard limit
    retired_double_bit: int = 15  # pages by double-bit errors: the soft limit

    # throttling: the share of time in a window
    throttling_window: float = 300.0  # seconds
    throttling_raise: float = 0.10  # own choice
    throttling_clear: float = 0.05  # own choice
    power_raise: float = 0.5  # own choice: a GPU at work is often at its power limit
    power_clear: float = 0.25  # own choice

    # temperature
    margin_raise: int = 0  # °C left at which it is raised
    margin_clear: int = 3  # °C left above which it ends; own choice
    heat_hold: float = 30.0  # seconds it must last to be raised, and be over to end; own choice

    # links
    replay_window: float = 600.0  # seconds; own choice
    replays_raise: Mapping[int, float] = field(
        default_factory=lambda: _REPLAYS
    )  # a minute and lane
    replays_clear: float = 0.5  # share of the above; own choice
    link_hold: float = 60.0  # seconds a PCIe link must be narrow under load; own choice
    nvlink_window: float = 600.0  # seconds in which one replay or recovery counts; own choice
    crc_window: float = 60.0  # seconds; own choice
    crc_raise: float = 100.0  # errors a second (DCGM)
    crc_clear: float = 50.0  # errors a second; own choice
    fabric_grace: float = 300.0  # seconds a GPU may take to join its fabric; own choice

    # the driver; own choices
    answer_hold: float = 10.0  # seconds for which a GPU must answer until it is believed
    hang_reboot: float = 600.0  # seconds without an answer after which a reboot is advised
    listener_hold: float = 10.0  # seconds the wait for events may fail until that is reported
    drift_hold: float = 30.0  # seconds a mode may differ before it is reported
    missing_hold: float = 30.0  # seconds a GPU may be missing, as while it is being reset

    # events; own choices
    application_lapse: float = 600.0  # seconds after which an application's XID is forgotten
    event_lapse: float = 3600.0  # seconds, for what has no defined action
    same_event: float = 5.0  # seconds between two sources' reports of the same XID
    recovery_settle: float = 10.0  # seconds until the recovery action covers an XID too
    repairs_before_inspection: int = 2  # resets or reboots for the same XID (gpud)
    repairs_memory: float = 7 * 86400.0  # seconds a repair is remembered
