"""Every threshold and window of the checks, with its unit; how long what they show must last is in
the check table. Others' choices unless said.

None of these numbers was measured on a GPU. DCGM's and gpud's are those of their health checks; the
rest are this program's own choice. A value at or above `..._RAISE` raises a finding; it ends below
`..._CLEAR`.
"""

from types import MappingProxyType
from typing import Final

# memory
REMAPPED_UNCORRECTABLE: Final = 512  # rows (DCGM)
RETIRED_PAGES: Final = 63  # pages: the hard limit
RETIRED_DOUBLE_BIT: Final = 15  # pages by double-bit errors: the soft limit

# throttling: the share of time in a window
THROTTLING_WINDOW: Final = 300.0  # seconds
THROTTLING_RAISE: Final = 0.10  # own choice
THROTTLING_CLEAR: Final = 0.05  # own choice
POWER_RAISE: Final = 0.5  # own choice: a GPU at work is often at its power limit
POWER_CLEAR: Final = 0.25  # own choice

# temperature
MARGIN_RAISE: Final = 0  # °C left at which it is raised
MARGIN_CLEAR: Final = 3  # °C left above which it ends; own choice

# links
REPLAY_WINDOW: Final = 600.0  # seconds; own choice
REPLAYS_RAISE: Final = MappingProxyType(  # a minute and lane, by the link's generation (DCGM)
    {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
)
REPLAYS_CLEAR: Final = 0.5  # share of the above; own choice
NVLINK_WINDOW: Final = 600.0  # seconds in which one replay or recovery counts; own choice
CRC_WINDOW: Final = 60.0  # seconds; own choice
CRC_RAISE: Final = 100.0  # errors a second (DCGM)
CRC_CLEAR: Final = 50.0  # errors a second; own choice

# the driver; own choices
HANG_REBOOT: Final = 600.0  # seconds without an answer after which a reboot is advised
LISTENER_HOLD: Final = 10.0  # seconds the wait for events may fail until that is reported

# events; own choices
APPLICATION_LAPSE: Final = 600.0  # seconds after which an application's XID is forgotten
EVENT_LAPSE: Final = 3600.0  # seconds, for what has no defined action
SAME_EVENT: Final = 5.0  # seconds between two sources' reports of the same XID
RECOVERY_SETTLE: Final = 10.0  # seconds until the recovery action covers an XID too
HIT_SEEN: Final = 30.0  # seconds after which who uses a place was not hit by what was found there
PODS_NAMED: Final = 50  # of a finding
REPAIRS_BEFORE_INSPECTION: Final = 2  # resets or reboots for the same XID (gpud)
REPAIRS_MEMORY: Final = 7 * 86400.0  # seconds a repair is remembered
CLOCK_SET: Final = 1_577_836_800.0  # 2020 in seconds since 1970; a clock before was never set
